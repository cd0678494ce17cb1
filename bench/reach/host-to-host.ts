import { createHash } from 'node:crypto'
import { performance } from 'node:perf_hooks'
import { openSshSessions } from '../../src/clients/ssh/sessions.ts'
import { transfer, type TransferSide } from '../../src/drivers/transfer/transfer.ts'
import { run } from '../../sites/ground.ts'
import { sshMissing, startSsh, type SshHost, type SshSite } from '../../sites/ssh.ts'
import { allMissing, programsMissing, rootMissing } from '../needs.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, median, medianRatio } from '../rounds.ts'
import { versionOf } from './places.ts'

interface Sizes {
  largeMiB: number
  /** A multiple of 500, because each folder holds 500 files. */
  smallFiles: number
}

const full: Sizes = { largeMiB: 512, smallFiles: 10_000 }

/** The moved data: one large file, or many small ones in folders of 500. */
const loadsOf = ({ largeMiB, smallFiles }: Sizes) => ({
  large: `mkdir -p large && head -c ${largeMiB * 2 ** 20} /dev/urandom > large/file`,
  // One stream, cut into pieces, gives each file different content.
  small:
    `mkdir -p small && cd small && head -c ${smallFiles * 4096} /dev/urandom | split -b 4096 -a 4 ` +
    `-d - f && for group in $(seq -w 0 ${smallFiles / 500 - 1}); do mkdir d$group; done && ls | ` +
    `grep '^f' | awk '{ print $0, "d" sprintf("%0${String(smallFiles / 500 - 1).length}d", int((NR ` +
    `- 1) / 500)) }' | while read -r file to; do echo "$file" >> $to.list; done && for list in ` +
    `*.list; do xargs mv -t "\${list%.list}" < "$list"; rm "$list"; done`,
})
type Load = keyof ReturnType<typeof loadsOf>

const account = async (host: SshHost, script: string): Promise<string> =>
  (await host.run(`cd; ${script}`, 'account')).stdout

/** One digest of all names and contents below a folder. */
const digest = async (host: SshHost, folder: string): Promise<string> =>
  createHash('sha256')
    .update(await account(host, `cd ${folder} && find . -type f -exec sha256sum {} + | LC_ALL=C sort -k 2`))
    .digest('hex')

const endOf = (host: SshHost, site: SshSite, sessions: ReturnType<typeof openSshSessions>): TransferSide => ({
  site: `ssh/${host.name}`,
  shell: sessions.shell({
    ...{ host: host.address, port: host.port, username: host.user, credential: 'bench' },
    secret: async () => ({ privateKey: site.key.privateKey }),
    hostKeys: { policy: 'strict', knownHosts: host.knownHosts() },
  }),
  mounts: [],
})

export const hostToHost: Benchmark = {
  about:
    `${full.largeMiB} MiB in one file, and ${full.smallFiles} files of 4 KiB, from one SSH host to ` +
    'another, against scp, rsync and rclone',
  missing: async () =>
    rootMissing() ?? allMissing(await sshMissing(), programsMissing({ rsync: 'rsync', rclone: 'rclone' })),
  async run({ rounds, tiny }) {
    const { largeMiB, smallFiles } = tiny ? { largeMiB: 1, smallFiles: 500 } : full
    const loads = loadsOf({ largeMiB, smallFiles })
    await using site = await startSsh({ hosts: 2, trust: true })
    const [from] = site.hosts
    const to = site.hosts[1]!
    const sessions = openSshSessions()
    try {
      for (const script of Object.values(loads)) await account(from, script)
      const wanted = { large: await digest(from, 'large'), small: await digest(from, 'small') }
      const ends = { from: endOf(from, site, sessions), to: endOf(to, site, sessions) }
      const remote = (host: SshHost, path: string): string => `${host.user}@${host.address}:${path}`
      const [, , , identity = ''] = site.sshOptions
      const sftp = (host: SshHost, path: string): string =>
        `:sftp,host=${host.address},user=${host.user},key_file=${identity},` +
        `known_hosts_file=${site.knownHostsFile},shell_type=unix:${path}`
      const ways = {
        Orrery: (load: Load) =>
          transfer({
            ...ends,
            label: 'benchmark',
            source: { directory: `${from.home}/${load}` },
            directory: `${to.home}/there`,
          }),
        // Through this machine, which is the default of OpenSSH 9.
        scp: (load: Load) =>
          run('scp', ['-3', '-q', '-r', ...site.sshOptions, remote(from, load), remote(to, 'there')]),
        // rsync cannot copy between two remote hosts, so it runs on one of them. That host may log
        // in at the other.
        rsync: (load: Load) => account(from, `rsync -a ${load}/ ${to.name}:there/`),
        rclone: (load: Load) =>
          run(
            'rclone',
            ['copy', '--config', '/dev/null', '--transfers', '4', sftp(from, load), sftp(to, 'there')],
            {
              deadlineMs: 900_000,
            },
          ),
      }
      const sides = (load: Load) =>
        Object.fromEntries(
          Object.entries(ways).map(([name, way]) => [
            name,
            async () => {
              await account(to, 'rm -rf there ~/.orrery')
              const started = performance.now()
              await way(load)
              const seconds = (performance.now() - started) / 1_000
              if ((await digest(to, 'there')) !== wanted[load])
                throw new Error(`${name} brought other files than ${load}`)
              return seconds
            },
          ]),
        ) as Record<keyof typeof ways, () => Promise<number>>
      const large = await interleaved(rounds, sides('large'))
      const small = await interleaved(rounds, sides('small'))
      const rows = (what: string, { cold, warm }: typeof large) =>
        (Object.keys(ways) as (keyof typeof ways)[]).map((name) => ({
          name: `${name}, ${what}`,
          unit: 's',
          cold: cold[name],
          warm: warm[name],
        }))
      const speed = (seconds: readonly number[]): string => `${(largeMiB / median(seconds)).toFixed(0)} MiB/s`
      return {
        sides: [...rows(`${largeMiB} MiB`, large), ...rows(`${smallFiles} files`, small)],
        goals: [
          {
            what: `${largeMiB} MiB, speed against scp`,
            unit: '×',
            measured: medianRatio(large.warm.scp, large.warm.Orrery),
            sense: 'least',
            goal: 1,
          },
          {
            what: `${smallFiles} files, speed against rclone`,
            unit: '×',
            measured: medianRatio(small.warm.rclone, small.warm.Orrery),
            sense: 'least',
            goal: 3,
          },
        ],
        notes: [
          `${largeMiB} MiB: Orrery ${speed(large.warm.Orrery)}, scp ${speed(large.warm.scp)}, rsync ` +
            `${speed(large.warm.rsync)}, rclone ${speed(large.warm.rclone)}`,
          'names and SHA-256 of all files compared after every copy, outside the measured time; ' +
            'Orrery’s time has its own verification in it',
          'Orrery, scp and rclone stream through this machine, rsync runs on the first host and ' +
            'logs in at the second; all share its cores',
        ],
        versions: {
          OpenSSH: versionOf((await run('ssh', ['-V'])).stderr),
          rsync: versionOf((await run('rsync', ['--version'])).stdout),
          rclone: versionOf((await run('rclone', ['version'])).stdout),
        },
      }
    } finally {
      await sessions.close()
    }
  },
}
