import { createHash } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { ClientBase } from 'pg'

/** The folders in the order of their application: a view may call a function. */
const folders = ['functions', 'views', 'views/provenance', 'views/provenance/derived']

/**
 * Every set of functions and views that was ever published, oldest first, and every signature that
 * a program may call.
 */
export interface PublishedDefinitions {
  /** Hashes of whole sets. */
  hashes: string[]
  signatures: string[]
}

export interface Definitions {
  /** One function or view each, written so that it may be applied again. */
  files: { name: string; text: string }[]
  hash: string
  /** Grows with every published set; a set that is not published yet comes behind all others. */
  number: number
}

export const readPublished = async (): Promise<PublishedDefinitions> =>
  JSON.parse(await readFile(join(import.meta.dirname, 'definitions.json'), 'utf8')) as PublishedDefinitions

/** The functions and views of this program, in `src/db/functions` and `src/db/views`. */
export const readDefinitions = async (): Promise<Definitions> => {
  const names = await Promise.all(
    folders.map(async (folder) =>
      (await readdir(join(import.meta.dirname, folder)))
        .filter((file) => file.endsWith('.sql'))
        .toSorted()
        .map((file) => `${folder}/${file}`),
    ),
  )
  const files = await Promise.all(
    names
      .flat()
      .map(async (name) => ({ name, text: await readFile(join(import.meta.dirname, name), 'utf8') })),
  )
  const hash = createHash('sha256').update(JSON.stringify(files)).digest('hex')
  const { hashes } = await readPublished()
  const at = hashes.lastIndexOf(hash)
  return { files, hash, number: at === -1 ? hashes.length + 1 : at + 1 }
}

/**
 * Applies the functions and views of this program where the database has others, or where
 * `migrated` has changed the tables below them. Definitions of a newer program stay: that program
 * may run beside this one, and its functions serve both. The caller holds the lock of the
 * migrations.
 */
export const applyDefinitions = async (client: ClientBase, migrated: boolean): Promise<void> => {
  await client.query(
    'create table if not exists schema_definitions (number integer primary key, hash text not ' +
      'null, applied_at timestamptz not null default now())',
  )
  const { files, hash, number } = await readDefinitions()
  const [newest] = (
    await client.query<{ number: number; hash: string }>(
      'select number, hash from schema_definitions order by number desc limit 1',
    )
  ).rows
  if (newest !== undefined && newest.number > number) return
  if (!migrated && newest?.number === number && newest.hash === hash) return
  await client.query('begin')
  try {
    for (const { name, text } of files)
      await client.query(text).catch((error: unknown) => {
        throw new Error(`${name} could not be applied`, { cause: error })
      })
    await client.query(
      'insert into schema_definitions (number, hash) values ($1, $2) on conflict (number) do update ' +
        'set hash = $2, applied_at = now()',
      [number, hash],
    )
    await client.query('commit')
  } catch (error) {
    await client.query('rollback')
    throw error
  }
}
