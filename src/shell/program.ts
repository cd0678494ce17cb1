import { readFileSync } from 'node:fs'
import { quote, quoteAll } from './quote.ts'

/**
 * A program of `sh` beside the driver that runs it: `.sh` files are read in place, in the checkout
 * and in the build.
 */
export const readProgram = (folder: string, name: string): string => readFileSync(`${folder}/${name}`, 'utf8')

/** The program of `sum.sh`: `choose_sum` defines `sum`, a site's fastest SHA-256. */
export const sumProgram = readProgram(import.meta.dirname, 'sum.sh')

/**
 * Assignments for `sh`, one a line: the parameters of a program. Names are ours, values may come
 * from any user.
 */
export const assign = (parameters: Readonly<Record<string, string | number>>): string =>
  Object.entries(parameters)
    .map(([name, value]) => `${name}=${typeof value === 'number' ? String(value) : quote(value)}\n`)
    .join('')

const lastLine = '# the script ends here'

/**
 * A script for `evaluated`, which arrives over a link that may break. The empty line is for a script
 * that ends with a backslash.
 */
export const withLastLine = (script: string): string => `${script}\n\n${lastLine}`

/**
 * Evaluates the script of `withLastLine` that a command prints. A script that was cut on the way runs not
 * at all, and the shell exits with 125.
 */
export const evaluated = (read: string): string =>
  `s=$(${read}); case $s in *'${lastLine}') eval "unset s; $s" ;; *) exit 125 ;; esac`

/** A call of one of a program's functions. */
export const call = (name: string, ...words: readonly string[]): string =>
  `${name} ${quoteAll(words)}`.trimEnd()
