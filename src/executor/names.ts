import { hash } from 'node:crypto'
import { join } from 'node:path'

/** Hexadecimal digits of the SHA-256 of a list. */
const sha256 = (...parts: (string | number)[]): string => hash('sha256', JSON.stringify(parts))

/**
 * Deterministic name of an attempt's effect: the same for every worker at any time, never the
 * caller's text. `t-` and 40 hexadecimal digits of SHA-256 over the run's effect key, activity
 * position and attempt. The key is drawn when the run is accepted (`execution_runs.effect_key`):
 * runs of equal ids in two services, or before and after a deletion of the data folder, meet at one
 * account of a site.
 */
export const intentName = (effectKey: string, position: number, attempt: number): string =>
  `t-${sha256(effectKey, position, attempt).slice(0, 40)}`

/** A run in names outside this service: 24 hexadecimal digits of its effect key's SHA-256. */
export const runScope = (effectKey: string): string => hash('sha256', effectKey).slice(0, 24)

/**
 * `<root>/<hash(run)>/<position>-<readable part of the activity>/<attempt>`; the position makes it
 * unique, the text only helps a reader.
 */
export const attemptDirectory = (
  root: string,
  effectKey: string,
  position: number,
  externalId: string,
  attempt: number,
): string =>
  join(
    root,
    runScope(effectKey),
    `${String(position)}-${externalId
      .toLowerCase()
      .replace(/[^a-z0-9]+/g, '-')
      .slice(0, 40)}`,
    String(attempt),
  )

const longest = 1_024

/** A colon inside a part is written %3A, so that no two lists of parts give one text. */
const part = (text: string): string =>
  text.replace(/:|%(?=3A)/g, (character) => (character === ':' ? '%3A' : '%25'))

/**
 * Parts joined by colons; beyond 1,024 bytes (ids of 255 characters of any script) a hash of the
 * whole replaces the end.
 */
const joined = (...parts: string[]): string => {
  const text = parts.map(part).join(':')
  return Buffer.byteLength(text) <= longest
    ? text
    : `${text.slice(0, 200).toWellFormed()}#${sha256(...parts)}`
}

/**
 * TaskExecution id: `<run>:<activity>` for the first attempt, `<run>:<activity>:<attempt>` after
 * it.
 */
export const taskExecutionId = (runId: string, activityId: string, attempt: number): string =>
  attempt === 1 ? joined(runId, activityId) : joined(runId, activityId, String(attempt))

/**
 * DataTransfer id: `<run>:<producer>:<consumer>`, with the consumer's attempt after it from the
 * second on.
 */
export const dataTransferId = (runId: string, producerId: string, consumerId: string, attempt = 1): string =>
  attempt === 1
    ? joined(runId, producerId, consumerId)
    : joined(runId, producerId, consumerId, String(attempt))

/**
 * Ids of a file as an object of the workflow version, and of its creation by one attempt; paths are
 * long, so the ids are hashes.
 */
export const dataObjectId = (versionId: string, activityId: string, path: string): string =>
  `data-${sha256(versionId, activityId, path).slice(0, 40)}`
export const dataInstanceId = (runId: string, activityId: string, attempt: number, path: string): string =>
  `file-${sha256(runId, activityId, attempt, path).slice(0, 40)}`
