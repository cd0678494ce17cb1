import { pathOfBytes } from '../outside-path.ts'

const beyondAscii = /[\x80-\xff]/

/** What a site printed as it stands in memory: a path, as names may be any bytes. */
export const fieldOf = (latin1: string): string =>
  beyondAscii.test(latin1) ? pathOfBytes(Buffer.from(latin1, 'latin1')) : latin1

/** The fields of a site's output between its NULs, as paths (`outside-path.ts`). */
export const fieldsOf = (bytes: Buffer): string[] => bytes.toString('latin1').split('\0').map(fieldOf)
