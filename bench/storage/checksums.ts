import { execFile } from 'node:child_process'
import { closeSync, mkdirSync, openSync, rmSync, writeSync } from 'node:fs'
import { randomBytes } from 'node:crypto'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { startDaemon } from '../daemon.ts'
import { newFolder } from '../folder.ts'
import { programsMissing } from '../needs.ts'
import { percentile } from '../records/measure.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, medianRatio, secondsOf } from '../rounds.ts'

const run = promisify(execFile)

export const storageChecksums: Benchmark = {
  about: 'checksum of 1 GiB through the API, and of two files at once, against openssl and rclone',
  missing: () => programsMissing({ openssl: 'openssl', rclone: 'rclone' }),
  async run({ rounds, tiny }) {
    const mebibytes = tiny ? 16 : 1_024
    const root = newFolder('storages-')
    const folder = join(root, 'data')
    mkdirSync(folder)
    for (const name of ['one', 'two']) {
      const file = openSync(join(folder, name), 'w')
      for (let k = 0; k < mebibytes; k += 1) writeSync(file, randomBytes(2 ** 20))
      closeSync(file)
    }
    const daemon = await startDaemon({ SERVICE_LOCAL_STORAGE_ROOT: root })
    try {
      await daemon.call('POST', '/environments/', {
        environment: { id: 'lab', name: 'lab' },
        version: { id: 'lab-v1', version: 1, status: 'published' },
        storages: [
          {
            ...{ id: 'data', name: 'data', type: 'local', endpoint: folder },
            configuration: { browseRoots: [{ path: '/' }] },
          },
        ],
      })
      const ours = async (path: string): Promise<string> =>
        (await daemon.call('POST', '/storages/data/checksum/', { path })).body.checksum
      const theirs = async (path: string): Promise<string> =>
        (await run('openssl', ['dgst', '-sha256', '-r', join(folder, path)])).stdout.slice(0, 64)
      for (const path of ['one', 'two'])
        if ((await ours(path)) !== `sha256:${await theirs(path)}`)
          throw new Error(`the digests of ${path} differ`)
      const waits: number[] = []
      /** The time of a small read beside a checksum, over and over until the checksum is there. */
      const beside = async (): Promise<void> => {
        let isOver = false
        const sum = ours('one').finally(() => (isOver = true))
        while (!isOver) {
          const began = performance.now()
          await daemon.call('GET', '/instance/')
          waits.push(performance.now() - began)
        }
        await sum
      }
      const { cold, warm } = await interleaved(rounds, {
        Orrery: () => secondsOf(() => ours('one')),
        openssl: () => secondsOf(() => theirs('one')),
        rclone: () =>
          secondsOf(() => run('rclone', ['hashsum', 'SHA256', '--config', '/dev/null', join(folder, 'one')])),
        'Orrery, two at once': () => secondsOf(() => Promise.all([ours('one'), ours('two')])),
      })
      for (let round = 0; round < rounds; round += 1) await beside()
      return {
        sides: Object.entries(warm).map(([name, seconds]) => ({
          ...{ name, unit: 's', warm: seconds },
          cold: cold[name as keyof typeof cold],
        })),
        goals: [
          {
            ...{ what: 'rate over that of openssl', unit: '×', sense: 'least', goal: 0.95 },
            measured: medianRatio(warm.openssl, warm.Orrery),
          },
          {
            ...{ what: 'rate over that of rclone hashsum', unit: '×', sense: 'least', goal: 3 },
            measured: medianRatio(warm.rclone, warm.Orrery),
          },
          {
            ...{ what: 'GET /instance/ beside a checksum, p99', unit: 'ms', sense: 'most', goal: 10 },
            measured: percentile(waits, 0.99),
          },
          {
            ...{ what: 'rate of two at once over one', unit: '×', sense: 'least', goal: 1.8 },
            measured: 2 * medianRatio(warm.Orrery, warm['Orrery, two at once']),
          },
        ],
        notes: [
          `${mebibytes} MiB of random bytes a file; both sides answer the same digest.`,
          'Two at once take both processors of a machine with two, which the service and its servers use too.',
          'A profile of one: 0.14 s beside the sum itself, most of it the start of the process that reads the ' +
            'file; reading a piece while one is summed, by a thread of its pool, takes 0.2 s longer.',
        ],
        versions: { openssl: (await run('openssl', ['version'])).stdout.trim() },
      }
    } finally {
      await daemon.stop()
      rmSync(root, { recursive: true, force: true })
    }
  },
}
