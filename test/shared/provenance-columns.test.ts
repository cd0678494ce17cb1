import { expect } from '@jest/globals'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { provenanceRoutes } from '../../src/domains/provenance/routes.ts'
import { needs } from '../support/needs.ts'
import { openRoutes } from '../support/open-routes.ts'

const { test } = needs('shared')

/** The tables of the reference's digest of the store, with their columns. */
const referenced = (): Map<string, string[]> => {
  const text = readFileSync(join(import.meta.dirname, '../../../shared/spec/domain-reference.md'), 'utf8')
  const digest = text.slice(text.indexOf('## 18. '), text.indexOf('## 19. '))
  const tables = new Map<string, string[]>()
  for (const [, name = '', columns = ''] of digest.matchAll(/\b([a-z_]+)\(([^)]*)\)/g))
    tables.set(
      name,
      columns
        .split(',')
        // "id unique", "size_bytes > 0": the name comes first.
        .map((column) => column.trim().split(' ')[0] ?? '')
        .filter((column) => /^[a-z_]+$/.test(column)),
    )
  return tables
}

test('every table of the reference can be read in SQL, with exactly its columns', async () => {
  const app = await openRoutes((db) => provenanceRoutes({ db, reader: undefined as never }))
  try {
    const { items } = (await app.call('GET', '/provenance/sql/schema/')).body as {
      items: { name: string; columns: { name: string }[] }[]
    }
    const found = new Map(items.map(({ name, columns }) => [name, columns.map((column) => column.name)]))
    const tables = referenced()
    expect(tables.size).toBeGreaterThan(25)
    for (const [name, columns] of tables)
      expect([name, found.get(name)?.toSorted()]).toEqual([
        name,
        (name === 'execution_runs' ? [...columns, 'transferred_bytes'] : columns).toSorted(),
      ])
  } finally {
    await app.close()
  }
})
