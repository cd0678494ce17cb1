import type { Header } from 'tar-stream'

/** The latest time that a head of tar-stream holds, in seconds since 1970; the earliest is 0. */
const latest = 2 ** 31 - 1
/** What a `Date` holds before and after 1970, in seconds. */
const furthest = 8.64e12

/**
 * The time of an archive's entry, in whole seconds, from milliseconds since 1970: a head holds the
 * nearest time that it can, and a PAX record the true one where that is another.
 */
export const tarTime = (milliseconds: number): { mtime: Date } & Pick<Header, 'pax'> => {
  const seconds = Math.min(Math.max(Math.floor(milliseconds / 1_000), -furthest), furthest)
  const held = Math.min(Math.max(seconds, 0), latest)
  return { mtime: new Date(held * 1_000), ...(held === seconds ? {} : { pax: { mtime: String(seconds) } }) }
}
