import { assign, readProgram } from '../../../shell/program.ts'
import type { LogRange, LogSlice } from '../contract/driver.ts'

const program = readProgram(import.meta.dirname, 'slice.sh')

/** A slice of a log is held in memory; a longer log is read in several slices. */
export const largestSlice = 16 * 1024 * 1024

/** A script that prints a slice of a file, which `parseSlice` reads. */
export const sliceScript = (file: string, range: LogRange): string => {
  const wanted = Math.min('tail' in range ? range.tail : range.limit, largestSlice)
  return `${assign({ FILE: file, WANTED: wanted, OFFSET: 'tail' in range ? '' : range.offset })}${program}`
}

export const parseSlice = (stdout: Buffer): LogSlice => {
  const line = stdout.indexOf('\n')
  const [totalBytes = 0, offset = 0] = stdout.subarray(0, line).toString().split(' ').map(Number)
  return { bytes: stdout.subarray(line + 1), offset, totalBytes }
}
