import { open, readFile, rename, writeFile } from 'node:fs/promises'
import { dirname } from 'node:path'
import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import type { VaultKeys } from '../../vault/keys.ts'
import { headText, macOf, noKey, startOf, worth } from './seal.ts'
import {
  ChainHead,
  chainHead,
  isSignedRecord,
  keysOfRecords,
  signedColumns,
  SignedRecord,
  type KeyOf,
} from './sealed.ts'

/**
 * A link of the chain in a file outside of the database. Who has the database alone cannot take the
 * link from the chain, so the newest records, an older head and a whole other chain are found. Each
 * daemon keeps a file of its own, which is a lower bound of the head.
 */

const Link = z.strictObject({
  /** The number of the head when the file began. */
  since: z.int().min(1),
  number: z.int().min(1),
  eventId: z.string(),
  seal: z.string(),
  keyId: z.string(),
  signature: z.string(),
})
export type WitnessLink = z.output<typeof Link>

export interface Witness {
  readonly file: string
  /** @returns undefined without a file. @throws Error naming a file that has no link */
  read(): Promise<WitnessLink | undefined>
  /** Replaces the file in one step, on disk when it resolves. */
  write(link: WitnessLink): Promise<void>
}

export const openWitness = (file: string): Witness => ({
  file,
  async read() {
    const text = await readFile(file, 'utf8').catch((error: unknown) => {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
      throw error
    })
    if (text === undefined) return undefined
    try {
      return Link.parse(JSON.parse(text))
    } catch (error) {
      throw new Error(`${file} holds no link of the audit chain`, { cause: error })
    }
  },
  async write(link) {
    const beside = `${file}.new`
    await writeFile(beside, `${JSON.stringify(link)}\n`, { mode: 0o600, flush: true })
    await rename(beside, file)
    await using folder = await open(dirname(file), 'r')
    await folder.sync()
  },
})

const linkText = ({ since, number, eventId, seal }: Omit<WitnessLink, 'keyId' | 'signature'>): string =>
  JSON.stringify([since, headText(number, eventId, seal)])

/**
 * The link as it can be compared. `fault` says why there is one that cannot be trusted.
 * @throws the errors of `keyOf`: a vault that gives no answer says nothing about the file
 */
export const checkedLink = async (
  witness: Witness | undefined,
  keyOf: KeyOf,
): Promise<{ link?: WitnessLink | undefined; fault?: string }> => {
  if (witness === undefined) return {}
  const { file } = witness
  const remedy = `remove the file if that is in order: the next record begins another`
  let link: WitnessLink | undefined
  try {
    link = await witness.read()
  } catch (error) {
    return { fault: `cannot be checked: ${file}: ${(error as Error).message}; ${remedy}` }
  }
  if (link === undefined) return {}
  const key = await keyOf(link.keyId)
  if (key === null)
    return {
      link,
      fault: `cannot be checked: ${file} names key ${link.keyId}, which the vault lacks; ${remedy}`,
    }
  return macOf(key, 'witness', linkText(link)) === link.signature
    ? { link }
    : { link, fault: `changed: ${file} was not written by the service; ${remedy}` }
}

const Numbered = SignedRecord.extend({ sealNumber: z.number(), seal: z.string() })
const numbered = sql`select ${signedColumns}, seal_number, seal from audit_events`

/** Whether the chain still has the link, or began anew after it by a factory reset. */
const holds = async (db: Db, link: WitnessLink, keyOf: KeyOf): Promise<boolean> => {
  const same = await db.maybe(Numbered, sql`${numbered} where seal_number = ${link.number}`)
  if (same !== undefined) return same.seal === link.seal
  const first = await db.maybe(
    Numbered,
    sql`${numbered} where seal_number is not null order by seal_number limit 1`,
  )
  if (first === undefined || first.sealNumber <= link.number) return false
  const { sealNumber, seal: _, ...record } = first
  return startOf(record).number === sealNumber - 1 && isSignedRecord(record, worth(link.keyId), keyOf)
}

/**
 * Moves the link to the head of the chain. A link that the chain no longer holds stays as it is, so
 * that later records do not hide what was changed before them.
 */
export const renewWitness = async (db: Db, keys: VaultKeys | undefined, witness: Witness): Promise<void> => {
  const keyOf = keysOfRecords(keys)
  const { link, fault } = await checkedLink(witness, keyOf)
  const head = await db.maybe(ChainHead, chainHead)
  if (fault !== undefined || head === undefined || head.number <= (link?.number ?? 0)) return
  const headKey = await keyOf(head.signatureKey)
  const { number, eventId, seal } = head
  if (headKey === null || macOf(headKey, 'head', headText(number, eventId, seal)) !== head.signature) return
  if (link !== undefined && !(await holds(db, link, keyOf))) return
  const key = await keys?.primary()
  const next = { since: link?.since ?? number, number, eventId, seal }
  await witness.write({ ...next, keyId: key?.id ?? noKey, signature: macOf(key, 'witness', linkText(next)) })
}
