/**
 * Long loops over values that are alike: the gate plays a share of them, the same at every run, and
 * a proof that imports the same file behind `playWhole` plays all.
 */
let isWhole = false

/** From here on loops of this test file are played whole. */
export const playWhole = (): void => {
  isWhole = true
}

/** How often a loop runs. */
export const runsOf = (inGate: number, whole: number): number => (isWhole ? whole : inGate)

/** Says of one after the other whether it is played: in the gate one in `each`. */
export const openShare = (each: number): (() => boolean) => {
  let asked = 0
  return () => isWhole || asked++ % each === 0
}
