import { assign, readProgram } from '../../../shell/program.ts'
import { quote } from '../../../shell/quote.ts'
import type { Packed } from '../remote/tasks.ts'

/** One element of an array: `NAME.TOKEN`, and what its task creates itself, if it is missing. */
export interface ArrayElement {
  script: string
  packed?: Packed
}

const body = readProgram(import.meta.dirname, 'array.sh')
/** Defines `unpack`, for `PACK` and the variables that `choose` has set. */
export const unpackProgram = readProgram(import.meta.dirname, 'unpack.sh')

/**
 * The packed texts of an array in one file, with the offset (counted from 1) and the size of each.
 */
export const packOf = (
  elements: readonly ArrayElement[],
): { bytes: Buffer; places: { from: number; size: number }[] } => {
  const texts = elements.map(({ packed }) => Buffer.from(packed?.text ?? ''))
  let from = 1
  const places = texts.map(({ length: size }) => {
    const place = { from, size }
    from += size
    return place
  })
  return { bytes: Buffer.concat(texts), places }
}

/** Defines `choose INDEX`. `is_used` of submissions.sh reads the lines of the elements as well. */
export const chooseProgram = (elements: readonly ArrayElement[]): string => {
  const { places } = packOf(elements)
  const choices = elements.map(({ script, packed }, index) => {
    const place =
      packed === undefined
        ? ''
        : ` from=${places[index]?.from} size=${places[index]?.size} directory=${quote(packed.directory)}`
    return `${index}) script=${script}${place} ;;`
  })
  return `choose() {\ncase $1 in\n${choices.join('\n')}\nesac\n}\n`
}

/**
 * The script of an array: its element finds its own script (`NAME.TOKEN`), creates it if it is
 * packed, and becomes the supervisor of that task. `index`, and `rerun` where the scheduler may run an
 * element again, are `sh` text, mostly variables of the scheduler; `command`: `sh` text that takes the
 * script from `$script`.
 */
export const arrayScript = (
  elements: readonly ArrayElement[],
  {
    array,
    pack,
    folder,
    command,
    index,
    rerun = { job: "''", restarts: "''" },
  }: {
    array: string
    pack: string
    folder: string
    command: string
    index: string
    rerun?: { job: string; restarts: string }
  },
): string =>
  `#!/bin/sh\n${chooseProgram(elements)}supervise() { exec ${command}; ` +
  `}\n${assign({ ARRAY: array, FOLDER: folder, PACK: pack })}INDEX=${index}\n` +
  `JOB=${rerun.job}\nRESTARTS=${rerun.restarts}\n${unpackProgram}${body}`
