import { createHash } from 'node:crypto'
import {
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  writeFileSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import { startS3, type S3Site } from '../../sites/s3.ts'
import { makeVaultKeyFile } from '../support/reach.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, type TestService } from '../support/service.ts'

/** Storages for the tests of jobs: folders of this machine, and buckets. */

export const sha256 = (bytes: Buffer | string): string => createHash('sha256').update(bytes).digest('hex')

export const storageRoot = (): string => realpathSync(mkdtempSync(join(runFolder(), 'storages-')))

/** Writes the files of a tree, with all folders. */
export const plant = (folder: string, files: Readonly<Record<string, Buffer | string>>): void => {
  for (const [path, content] of Object.entries(files)) {
    mkdirSync(dirname(join(folder, path)), { recursive: true })
    writeFileSync(join(folder, path), content)
  }
}

/** The digest of each file below a folder, by its path in latin1; directories end in `/`. */
export const treeOf = (folder: string): Record<string, string> =>
  Object.fromEntries(
    (readdirSync(Buffer.from(folder, 'latin1'), { encoding: 'latin1' }) as string[])
      .toSorted()
      .flatMap((name) => {
        const path = Buffer.from(`${folder}/${name}`, 'latin1')
        const stats = lstatSync(path)
        if (stats.isDirectory())
          return [
            [`${name}/`, 'directory'],
            ...Object.entries(treeOf(`${folder}/${name}`)).map(([below, digest]) => [
              `${name}/${below}`,
              digest,
            ]),
          ]
        return [[name, stats.isFile() ? sha256(readFileSync(path)) : 'special']]
      }),
  )

export const localStorage = (id: string, endpoint: string, more: object = {}) => ({
  ...{ id, name: id, type: 'local', endpoint, configuration: { browseRoots: [{ path: '/' }] } },
  ...more,
})

/** `/srv` of the host that the connection of the same id leads to. */
export const loginStorage = (id: string) => ({
  ...{ id, name: id, type: 'ssh-filesystem', endpoint: '/srv' },
  configuration: { connectionId: id, browseRoots: [{ path: '/' }] },
})

export const bucketStorage = (
  id: string,
  site: Pick<S3Site, 'endpoint'>,
  endpoint: string,
  credentialReference: string,
) => ({
  ...{ id, name: id, type: 's3', endpoint, credentialReference },
  configuration: {
    endpointUrl: site.endpoint,
    region: 'us-east-1',
    pathStyle: true,
    signed: true,
    browseRoots: [{ path: '/' }],
  },
})

export const environmentOf = (id: string, storages: object[], more: object = {}) => ({
  environment: { id, name: id },
  version: { id: `${id}-v1`, version: 1, status: 'published' },
  storages,
  ...more,
})

/**
 * The service with an environment `lab` of these storages and `bucket`, a bucket of a real S3
 * server, `site`. `bucket` of the result is its folder here.
 */
export const openLab = async (root: string, storages: object[], bucketEndpoint = 's3://bucket') => {
  const site = await startS3()
  let service: TestService | undefined
  const close = async (): Promise<void> => {
    await service?.[Symbol.asyncDispose]()
    await site.stop()
  }
  try {
    const bucket = site.bucket('bucket')
    service = await openService({
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
    await service.post(
      '/environments/',
      environmentOf('lab', [...storages, bucketStorage('bucket', site, bucketEndpoint, credentialRef)]),
    )
    return { service, site, bucket, close }
  } catch (error) {
    await close()
    throw error
  }
}
