import { mkdirSync, readdirSync, rmSync } from 'node:fs'
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
      const remote = (path: string): string => `${host.user}@${host.address}:${path}`
      const scp = (from: string, to: string) => (): Promise<unknown> =>
        run('scp', ['-q', '-r', ...site.sshOptions, from, to], { deadlineMs: 900_000 })
      const rclone = (from: string, to: string) => (): Promise<unknown> =>
        run('rclone', ['copy', '--config', '/dev/null', '--transfers', '4', from, to], {
          deadlineMs: 900_000,
        })
      const theirs = join(root, 'theirs')
      const uploaded = async (work: () => Promise<unknown>): Promise<number> => {
        const seconds = await secondsOf(work)
        await clear()
        return seconds
      }
      const downloaded = async (load: string, work: () => Promise<unknown>): Promise<number> => {
        const seconds = await secondsOf(work)
        const namesIn = (folder: string): number => readdirSync(folder, { recursive: true }).length
        if (namesIn(theirs) !== namesIn(join(root, load))) throw new Error('a download lacks files')
        rmSync(theirs, { recursive: true })
        return seconds
      }
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
        'scp, up': () => uploaded(scp(join(root, load), remote('/srv/theirs'))),
        'scp, down': () => downloaded(load, scp(remote(`/srv/kept-${load}`), theirs)),
        'rclone 4, up': () => uploaded(rclone(join(root, load), sftp('/srv/theirs'))),
        'rclone 4, down': () => downloaded(load, rclone(sftp(`/srv/kept-${load}`), theirs)),
      })
      for (const load of ['large', 'small']) await scp(join(root, load), remote(`/srv/kept-${load}`))()
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
        goals: (['large', 'small'] as const).flatMap((load) =>
          (['scp', 'rclone 4'] as const).flatMap((other) =>
            (['up', 'down'] as const).map((way) => ({
              ...{ what: `${names[load]}: rate over ${other}, ${way}`, unit: '×', sense: 'least' as const },
              goal: load === 'small' && other !== 'scp' ? 3 : 1,
              measured: medianRatio(loads[load].warm[`${other}, ${way}`], loads[load].warm[`Orrery, ${way}`]),
            })),
          ),
        ),
        notes: [
          'Both ends share this machine; Orrery records each entry and the end durably.',
          'A profile of six copies of 512 MiB each way: of 60 s the daemon works 38: writes to sockets and pipes 8, ' +
            'SHA-256 8, garbage collection 4, AES 3.',
        ],
        versions: { rclone: (await run('rclone', ['version'])).stdout.split('\n')[0] ?? '' },
      }
    } finally {
      await daemon.stop()
      rmSync(root, { recursive: true, force: true })
    }
  },
}
