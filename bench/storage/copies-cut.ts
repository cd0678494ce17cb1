import { readdirSync, rmSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { startRelay } from '../../sites/relay.ts'
import { startS3 } from '../../sites/s3.ts'
import { sshMissing, startSsh } from '../../sites/ssh.ts'
import { startDaemon } from '../daemon.ts'
import { newFolder } from '../folder.ts'
import { allMissing, rootMissing } from '../needs.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, median } from '../rounds.ts'
import { environmentOf, localStorage, plantLarge, withVault, type Daemon } from './lab.ts'

const pause = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 10))

/**
 * Copies the file, and kills the service with its worker where `isHalf` is true. @returns once the
 * copy is complete
 */
const copyWith = async (daemon: Daemon, to: string, id: string, isHalf?: () => boolean): Promise<void> => {
  const body = { id, path: 'file', destinationStorageId: to, destinationPath: id }
  await daemon.ok('POST', '/storages/here/copies/', body)
  const statusOf = async (): Promise<string> => (await daemon.ok('GET', `/storage-downloads/${id}/`)).status
  if (isHalf !== undefined) {
    while (!isHalf()) await pause()
    if ((await statusOf()) === 'completed') throw new Error(`${id} was complete before the kill`)
    await daemon.killAndRestart()
  }
  for (;;) {
    const status = await statusOf()
    if (status === 'completed') return
    if (status === 'failed') throw new Error(`${id} failed`)
    await pause()
  }
}

export const copiesCut: Benchmark = {
  about: 'a copy to a bucket and to an SSH host whose service is killed half-way: what is sent again',
  missing: async () => allMissing(rootMissing(), await sshMissing()),
  async run({ rounds, tiny }) {
    const mebibytes = tiny ? 512 : 4_096
    const size = mebibytes * 2 ** 20
    const root = newFolder('storages-')
    await using s3 = await startS3()
    await using relay = await startRelay(s3.endpoint)
    await using site = await startSsh({ hosts: 1 })
    const [host] = site.hosts
    plantLarge(join(root, 'file'), mebibytes)
    const daemon = await startDaemon({ ...withVault(root), SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true' })
    try {
      const bucket = s3.bucket('bucket')
      const { credentialRef } = await daemon.ok('POST', '/cloud-credentials/', {
        ...{ id: 'site', provider: 'aws', credential: s3.accessKey },
      })
      const key = await daemon.ok('POST', '/ssh-keys/', { id: 'site' })
      host.authorize(key.publicKey)
      const browseRoots = [{ path: '/' }]
      const place = { endpointUrl: relay.endpoint, region: 'us-east-1', pathStyle: true, signed: true }
      const storages = [
        localStorage('here', root),
        {
          ...{ id: 'bucket', name: 'bucket', type: 's3', endpoint: 's3://bucket' },
          ...{ credentialReference: credentialRef, configuration: { ...place, browseRoots } },
        },
        {
          ...{ id: 'site', name: 'site', type: 'ssh-filesystem', endpoint: '/srv' },
          configuration: { connectionId: 'site', browseRoots },
        },
      ]
      const login = {
        ...{ id: 'site', name: 'site', type: 'ssh', endpoint: host.address, username: host.user },
        ...{ credentialRef: key.credentialRef },
        configuration: { port: host.port, knownHosts: host.knownHosts() },
      }
      await daemon.ok('POST', '/environments/', environmentOf('lab', storages, { connections: [login] }))
      const srv = join(host.folder, 'srv')
      const sizeAtHost = (): number =>
        Math.max(
          0,
          ...readdirSync(srv).map((name) => statSync(join(srv, name), { throwIfNoEntry: false })?.size ?? 0),
        )
      let number = 0
      const percent = (bytes: number): number => (bytes / size) * 100
      const toHost = async (isHalf?: () => boolean): Promise<number> => {
        number += 1
        const before = await host.received()
        await copyWith(daemon, 'site', `copy-${number}`, isHalf)
        const bytes = (await host.received()) - before
        await host.run('rm -f /srv/copy-*')
        return bytes
      }
      // SSH and TCP add to the bytes of the file.
      const uncut = await toHost()
      const { cold, warm } = await interleaved(rounds, {
        'to a bucket': async () => {
          number += 1
          const before = relay.sent()
          await copyWith(daemon, 'bucket', `copy-${number}`, () => relay.sent() - before >= size / 2)
          rmSync(join(bucket, `copy-${number}`))
          return percent(relay.sent() - before - size)
        },
        'to an SSH host': async () => percent((await toHost(() => sizeAtHost() >= size / 2)) - uncut),
      })
      return {
        sides: (['to a bucket', 'to an SSH host'] as const).map((name) => ({
          ...{ name: `${name}: sent again`, unit: '%', cold: cold[name], warm: warm[name] },
        })),
        goals: (['to a bucket', 'to an SSH host'] as const).map((name) => ({
          ...{ what: `${name}: sent again of the file`, unit: ' %', sense: 'most' as const, goal: 1 },
          measured: median(warm[name]),
        })),
        notes: [
          `One file of ${mebibytes.toLocaleString('en')} MiB. The service and its worker get SIGKILL when half of it ` +
            'is at the far end. The bucket counts the bodies of its requests; the host counts the bytes of its ' +
            'network interface, less those of a copy without a kill.',
          'Up to three parts of 8 MiB to a bucket are under way at a time: of files below 2.4 GiB they are more ' +
            'than 1 %.',
        ],
        versions: {},
      }
    } finally {
      await daemon.stop()
      rmSync(root, { recursive: true, force: true })
    }
  },
}
