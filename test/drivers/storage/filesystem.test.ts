import { mkdirSync, mkdtempSync, realpathSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { openFilesystem } from '../../../src/drivers/storage/filesystem/driver.ts'
import { runFolder } from '../../support/run-folder.ts'
import { storageConformance, storageKinds } from './conformance.ts'
import { hostileFolder } from './hostile.ts'

const opened = () => {
  const base = realpathSync(mkdtempSync(join(runFolder(), 'storage-')))
  mkdirSync(join(base, 'endpoint'))
  const again = () => openFilesystem({ base, below: ['endpoint' as never] })
  const stop = (): Promise<void> => Promise.resolve(rmSync(base, { recursive: true, force: true }))
  return { base, folder: join(base, 'endpoint'), driver: again(), again, stop }
}

storageConformance('a folder of this machine', storageKinds.folder, () => Promise.resolve(opened()))
hostileFolder('a folder of this machine', () => Promise.resolve(opened()), { swaps: 3_000 })
