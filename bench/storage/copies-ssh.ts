import { mkdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { run } from '../../sites/ground.ts'
import { sshMissing, startSsh } from '../../sites/ssh.ts'
import { startDaemon } from '../daemon.ts'
import { newFolder } from '../folder.ts'
import { allMissing, programsMissing, rootMissing } from '../needs.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, medianRatio, secondsOf } from '../rounds.ts'
import { environmentOf, localStorage, plantLarge, plantSmall, secondsOfJob, withVault } from './lab.ts'

export const copiesSsh: Benchmark = {
  about:
    'copies between a folder and an SSH host: 512 MiB, and 10,000 files of 4 KiB, against scp and rclone',
  missing: async () => rootMissing() ?? allMissing(await sshMissing(), programsMissing({ rclone: 'rclone' })),
  async run({ rounds, tiny }) {
    const [mebibytes, files] = tiny ? [16, 500] : [512, 10_000]
    const root = newFolder('storages-')
    await using site = await startSsh({ hosts: 1 })
    const [host] = site.hosts
    for (const name of ['large', 'small']) mkdirSync(join(root, name))
    plantLarge(join(root, 'large', 'file'), mebibytes)
    plantSmall(join(root, 'small'), files)
    const daemon = await startDaemon(withVault(root))
    try {
      const { credentialRef, publicKey } = (await daemon.call('POST', '/ssh-keys/', { id: 'site' })).body
      host.authorize(publicKey)
      await daemon.call(
        'POST',
        '/environments/',
        environmentOf(
          'lab',
          [
            localStorage('here', root),
            {
              ...{ id: 'site', name: 'site', type: 'ssh-filesystem', endpoint: '/srv' },
              configuration: { connectionId: 'site', browseRoots: [{ path: '/' }] },
            },
          ],
          {
            connections: [
              {
                ...{ id: 'site', name: 'site', type: 'ssh', endpoint: host.address, credentialRef },
                ...{ username: host.user, configuration: { port: host.port, knownHosts: host.knownHosts() } },
              },
            ],
          },
        ),
      )
      const clear = (): Promise<unknown> => host.run('rm -rf /srv/ours-* /srv/theirs')
      const [, , , identity = ''] = site.sshOptions
      const sftp = (path: string): string =>
        `:sftp,host=${host.address},user=${host.user},key_file=${identity},` +
        `known_hosts_file=${site.knownHostsFile},shell_type=unix:${path}`
      let number = 0
      const sides = (load: string) => ({
        'Orrery, up': async () => {
          number += 1
          const seconds = await secondsOfJob(daemon, '/storages/here/copies/', {
            ...{ path: load, destinationStorageId: 'site', destinationPath: `ours-${number}` },
          })
          await clear()
          return seconds
        },
        'Orrery, down': async () => {
          number += 1
          const seconds = await secondsOfJob(daemon, '/storages/site/copies/', {
            ...{ path: `kept-${load}`, destinationStorageId: 'here', destinationPath: `back-${number}` },
          })
          rmSync(join(root, `back-${number}`), { recursive: true })
          return seconds
        },
        'scp, up': async () => {
          const seconds = await secondsOf(() =>
            run('scp', [
              ...['-q', '-r', ...site.sshOptions],
              ...[join(root, load), `${host.user}@${host.address}:/srv/theirs`],
            ]),
          )
          await clear()
          return seconds
        },
        'rclone 4, up': async () => {
          const seconds = await secondsOf(() =>
            run(
              'rclone',
              ['copy', '--config', '/dev/null', '--transfers', '4', join(root, load), sftp('/srv/theirs')],
              { deadlineMs: 900_000 },
            ),
          )
          await clear()
          return seconds
        },
      })
      for (const load of ['large', 'small'])
        await run('scp', [
          ...['-q', '-r', ...site.sshOptions, join(root, load)],
          `${host.user}@${host.address}:/srv/kept-${load}`,
        ])
      const loads = {
        large: await interleaved(rounds, sides('large')),
        small: await interleaved(rounds, sides('small')),
      }
      const names = { large: `${mebibytes} MiB`, small: `${files.toLocaleString('en')} files of 4 KiB` }
      return {
        sides: (['large', 'small'] as const).flatMap((load) =>
          (Object.keys(loads[load].warm) as (keyof typeof loads.large.warm)[]).map((name) => ({
            ...{ name: `${names[load]}: ${name}`, unit: 's' },
            ...{ warm: loads[load].warm[name], cold: loads[load].cold[name] },
          })),
        ),
        goals: [
          ...(['scp, up', 'rclone 4, up'] as const).map((other) => ({
            ...{ what: `${names.large}: rate over ${other}`, unit: '×', sense: 'least' as const, goal: 1 },
            measured: medianRatio(loads.large.warm[other], loads.large.warm['Orrery, up']),
          })),
          {
            ...{ what: `${names.small}: rate over rclone 4, up`, unit: '×', sense: 'least', goal: 3 },
            measured: medianRatio(loads.small.warm['rclone 4, up'], loads.small.warm['Orrery, up']),
          },
        ],
        notes: [
          'Both ends share this machine; Orrery records each entry and the end durably.',
          'A profile of the daemon over the whole benchmark: it waits 279 of 329 s; of the 50 it works, 16 are ' +
            'writes to sockets and pipes, 5.5 garbage collection, 3.6 SHA-256, 1.7 AES.',
        ],
        versions: { rclone: (await run('rclone', ['version'])).stdout.split('\n')[0] ?? '' },
      }
    } finally {
      await daemon.stop()
      rmSync(root, { recursive: true, force: true })
    }
  },
}
