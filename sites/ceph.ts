import { randomUUID } from 'node:crypto'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { leash } from '../src/embedded/leash.ts'
import { freePort } from '../src/embedded/ports.ts'
import { folderAt, openGround, run, until } from './ground.ts'
import type { AccessKey } from './s3.ts'

/**
 * Ceph's S3 server on loopback, path style, region us-east-1, in memory: flat keys, as AWS has
 * them.
 */
export interface CephSite extends AsyncDisposable {
  readonly folder: string
  readonly endpoint: string
  readonly accessKey: AccessKey
  bucket(name: string): Promise<void>
  stop(): Promise<void>
}

interface Place {
  folder: string
  monitor: number
  gateway: number
  cluster: string
}

/** One monitor, one store in memory, no authentication between them: all on loopback. */
const configurationOf = ({ folder, monitor, gateway, cluster }: Place): string =>
  [
    '[global]',
    `fsid = ${cluster}`,
    `mon host = v2:127.0.0.1:${monitor}`,
    ...['public addr = 127.0.0.1', 'cluster addr = 127.0.0.1', 'ms bind ipv6 = false'],
    ...['cluster required', 'service required', 'client required', 'supported'].map(
      (each) => `auth ${each} = none`,
    ),
    'auth allow insecure global id reclaim = false',
    // With the default mode the gateway waits five minutes for the monitor.
    ...['mon client', 'mon service', 'mon cluster', 'client', 'service', 'cluster'].map(
      (each) => `ms ${each} mode = crc`,
    ),
    ...['size = 1', 'min size = 1', 'pg num = 4', 'pgp num = 4', 'pg autoscale mode = off'].map(
      (each) => `osd pool default ${each}`,
    ),
    ...['osd crush chooseleaf type = 0', 'mon allow pool size one = true', 'mon max pg per osd = 1000'],
    ...['mon pg warn min per osd = 0', 'osd objectstore = memstore', 'memstore device bytes = 2147483648'],
    ...['run dir', 'admin socket', 'pid file', 'log file', 'crash dir'].map(
      (each, at) =>
        `${each} = ${folder}/${['run', 'run/$name.asok', 'run/$name.pid', 'log/$name.log', 'log'][at] ?? ''}`,
    ),
    ...['mon', 'osd', 'mgr', 'rgw'].map((each) => `${each} data = ${folder}/${each}`),
    ...['osd journal = ', `keyring = ${folder}/keyring`, 'setuser match path = '],
    '[client.rgw]',
    `rgw frontends = beast endpoint=127.0.0.1:${gateway}`,
    ...['rgw dns name = localhost', 'rgw thread pool size = 64', 'rgw enable usage log = false'],
    ...['rgw gc max objs = 3', 'rgw enable lc threads = false', ''],
  ].join('\n')

/**
 * Starts it, in about 15 seconds; it ends with this process. @throws Error with the end of its log
 */
export const startCeph = async (): Promise<CephSite> => {
  const ground = openGround('ceph')
  const place = {
    ...{ folder: ground.folder, monitor: await freePort(), gateway: await freePort(), cluster: randomUUID() },
  }
  const { folder, monitor, gateway, cluster } = place
  const file = join(folder, 'ceph.conf')
  for (const name of ['mon', 'osd', 'mgr', 'rgw', 'log', 'run']) folderAt(join(folder, name), 0o700)
  writeFileSync(file, configurationOf(place))
  writeFileSync(join(folder, 'keyring'), '')
  const running: Awaited<ReturnType<typeof leash>>[] = []
  const log = (): string =>
    ['mon.a', 'osd.0', 'client.rgw']
      .map((name) => join(folder, `${name}.out`))
      .filter((each) => existsSync(each))
      .map((each) => readFileSync(each, 'utf8').slice(-2_000))
      .join('\n')
  const serve = async (name: string, program: string, ...words: string[]): Promise<void> => {
    running.push(
      await leash({
        ...{
          command: [program, ...words, '-c', file, '-f'],
          directory: '/',
          logFile: join(folder, `${name}.out`),
        },
        environment: { PATH: '/usr/bin:/bin', HOME: folder },
        ...{ softSignal: 'TERM', patienceSeconds: 5 },
      }),
    )
  }
  const stop = async (): Promise<void> => {
    for (const each of running.toReversed()) {
      each.kill()
      await each.ended
    }
    await ground.leave()
  }
  const endpoint = `http://127.0.0.1:${gateway}`
  const accessKey = { accessKeyId: 'AKIAEXAMPLE', secretAccessKey: 'example-secret' }
  try {
    const store = randomUUID()
    await run('monmaptool', [
      ...['--create', '--addv', 'a', `[v2:127.0.0.1:${monitor}]`, '--fsid', cluster, join(folder, 'monmap')],
    ])
    await run('ceph-mon', ['-c', file, '--mkfs', '-i', 'a', '--monmap', join(folder, 'monmap')])
    await serve('mon.a', 'ceph-mon', '-i', 'a')
    await run('ceph', ['-c', file, 'osd', 'new', store, '0'], { deadlineMs: 60_000 })
    await run('ceph-osd', ['-c', file, '-i', '0', '--mkfs', '--osd-uuid', store])
    await serve('osd.0', 'ceph-osd', '-i', '0')
    await run('ceph', ['-c', file, 'osd', 'crush', 'add', 'osd.0', '1.0', 'root=default', 'host=localhost'])
    await serve('client.rgw', 'radosgw', '-n', 'client.rgw')
    await until(
      'the gateway of Ceph',
      () =>
        fetch(endpoint).then(
          () => true,
          () => false,
        ),
      log,
      120_000,
    )
    await run(
      'radosgw-admin',
      [
        ...['-c', file, 'user', 'create', '--uid=u1', '--display-name=u1'],
        ...[`--access-key=${accessKey.accessKeyId}`, `--secret-key=${accessKey.secretAccessKey}`],
      ],
      { deadlineMs: 60_000 },
    )
  } catch (error) {
    await stop()
    throw error
  }
  return {
    ...{ folder, endpoint, accessKey, stop },
    async bucket(name) {
      const { AwsV4Signer } = await import('aws4fetch')
      const url = `${endpoint}/${name}`
      const signer = new AwsV4Signer({ ...accessKey, method: 'PUT', url, service: 's3', region: 'us-east-1' })
      const signed = await signer.sign()
      const answer = await fetch(signed.url, { method: 'PUT', headers: signed.headers })
      if (!answer.ok) throw new Error(`the bucket cannot be made: ${answer.status} ${await answer.text()}`)
    },
    [Symbol.asyncDispose]: stop,
  }
}
