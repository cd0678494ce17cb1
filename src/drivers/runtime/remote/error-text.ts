import { reasonText } from '../../../outside-text.ts'

/** What a command of the site printed as its error, for a reason. */
export const errorTextOf = (stderr: string): string =>
  reasonText(stderr, { characters: 1000 }) || 'it printed no error'
