import { test } from '@jest/globals'

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

/**
 * Says of one after the other whether it is played: in the gate one in `each`, the first among them.
 * The steps are those of the golden ratio, so that no period of the values meets always the same ones.
 */
export const openShare = (each: number): (() => boolean) => {
  let asked = 0
  return () => isWhole || (asked++ * 0.6180339887498949) % 1 < 1 / each
}

/** A test that the gate leaves out; the proof that imports its file plays it with the rest. */
export const proved = ((...of: Parameters<typeof test>) => {
  if (isWhole) test(...of)
}) as typeof test
proved.each = ((table: readonly never[]) =>
  (...of: [string, () => void]) => {
    if (isWhole) test.each(table)(...of)
  }) as typeof test.each
