import { expect, test } from '@jest/globals'
import { execFile } from 'node:child_process'
import { mkdirSync, mkdtempSync, realpathSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { startLoopbackSsh } from '../../sites/loopback.ts'
import { startS3 } from '../../sites/s3.ts'
import { makeVaultKeyFile } from '../support/reach.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService } from '../support/service.ts'

test('the script of the storages runs to its end, and again', async () => {
  const root = realpathSync(mkdtempSync(join(runFolder(), 'storages-')))
  const folder = join(root, 'mine')
  mkdirSync(folder)
  await using site = await startS3()
  site.bucket('data')
  await using hosts = await startLoopbackSsh({ hosts: 1 })
  const [host] = hosts.hosts
  await using service = await openService({
    environment: {
      SERVICE_LOCAL_STORAGE_ROOT: root,
      SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
      SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
    },
  })
  const { credentialRef } = await service.post('/cloud-credentials/', {
    id: 'site',
    provider: 'aws',
    credential: site.accessKey,
  })
  const key = await service.post('/ssh-keys/', { id: 'host' })
  host!.authorize(key.publicKey)
  // The second run finds the environment of the first.
  for (let round = 0; round < 2; round++) {
    const { stdout } = await promisify(execFile)(
      join(import.meta.dirname, '../../examples/storages/storages.sh'),
      {
        timeout: 100_000,
        env: {
          ...{ PATH: process.env['PATH'], api: service.baseUrl, folder },
          ...{ endpoint: site.endpoint, reference: credentialRef },
          ...{ host: `${host!.address}:${host!.port}`, user: host!.user, key: key.credentialRef },
          ...{ fingerprint: host!.fingerprint(), place: host!.folder },
        },
      },
    )
    expect(stdout).toMatch(/"status":"completed"/)
    expect(stdout).toMatch(/"checksum":"sha256:/)
    expect(stdout).toMatch(/"path":"results-\d+\/large"/)
    expect(stdout).toMatch(/\{"id":"table-\d+"\}/)
  }
})
