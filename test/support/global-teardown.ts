import { servers } from './global-setup.ts'

export default async function teardown(): Promise<void> {
  await servers.disposeAsync()
}
