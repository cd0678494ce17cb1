import { createHash } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'

const folder = join(import.meta.dirname, 'migrations')

export interface Migration {
  number: number
  name: string
  text: string
  hash: string
}

/** The numbered migrations in `src/db/migrations`, in order. */
export const readMigrations = async (): Promise<Migration[]> => {
  const files = (await readdir(folder)).filter((file) => file.endsWith('.sql')).sort()
  return Promise.all(
    files.map(async (file) => {
      const text = await readFile(join(folder, file), 'utf8')
      return {
        number: Number.parseInt(file, 10),
        name: file,
        text,
        hash: createHash('sha256').update(text).digest('hex'),
      }
    }),
  )
}

/** The number of the newest schema that this program knows. */
export const newestMigration = async (): Promise<number> => (await readMigrations()).at(-1)?.number ?? 0
