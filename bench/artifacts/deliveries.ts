import { createCipheriv } from 'node:crypto'
import { createWriteStream, mkdirSync, rmSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { allowApptainer, haveApptainer } from '../../sites/apptainer.ts'
import { run } from '../../sites/ground.ts'
import { kubernetesImages } from '../../sites/kubernetes-images.ts'
import { sshMissing, startSsh } from '../../sites/ssh.ts'
import { configFromEnvironment } from '../../src/config.ts'
import { startDaemon } from '../daemon.ts'
import { newFolder } from '../folder.ts'
import { allMissing, programsMissing, rootMissing } from '../needs.ts'
import { timedRun } from '../planned-run.ts'
import { bag, importKey, planOn, versionOf } from '../reach/places.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, medianRatio, secondsOf } from '../rounds.ts'

const mebibyte = 2 ** 20

interface Transfer {
  networkBytes: number
  /** Seconds since 1970. */
  startedAt: number
  finishedAt: number
}

/** A SIF file of busybox and so many MiB that do not compress. */
const makeSif = async (folder: string, mebibytes: number): Promise<string> => {
  const { busybox } = await kubernetesImages(configFromEnvironment().cacheDir)
  const environment = { HOME: folder, PATH: '/usr/sbin:/usr/bin:/sbin:/bin', APPTAINER_TMPDIR: folder }
  const root = join(folder, 'root')
  await run('apptainer', ['-q', 'build', '--sandbox', root, `docker-archive:${busybox}`], { environment })
  mkdirSync(join(root, 'srv'), { recursive: true })
  const random = createCipheriv('aes-128-ctr', Buffer.alloc(16, 1), Buffer.alloc(16))
  const zeros = Buffer.alloc(mebibyte)
  const pieces = function* () {
    for (let at = 0; at < mebibytes; at += 1) yield random.update(zeros)
  }
  await pipeline(Readable.from(pieces()), createWriteStream(join(root, 'srv/bytes')))
  const path = join(folder, 'large.sif')
  await run('apptainer', ['-q', 'build', '-F', path, root], { environment, deadlineMs: 600_000 })
  rmSync(root, { recursive: true, force: true })
  return path
}

export const deliveries: Benchmark = {
  about: 'a SIF file of 500 MiB to three SSH hosts, where 100 tasks each wait for it, against three scp',
  missing: async () =>
    rootMissing() ??
    allMissing(
      await sshMissing(),
      programsMissing({ mksquashfs: 'squashfs-tools', patchelf: 'patchelf', scp: 'openssh-client' }),
    ),
  async run({ rounds, tiny }) {
    await haveApptainer()
    const folder = newFolder('deliveries-')
    const sif = await makeSif(folder, tiny ? 8 : 500)
    const { size } = statSync(sif)
    await using site = await startSsh({ hosts: 3 })
    for (const host of site.hosts) await allowApptainer(host)
    const daemon = await startDaemon({ SERVICE_SEED_ROOT: folder })
    try {
      const credentialRef = await importKey(daemon, 'site', site.key.privateKey)
      const planned = await planOn(daemon, {
        name: 'delivered',
        dag: bag(tiny ? 6 : 300),
        command: () => ({
          executable: { source: { type: 'local-file', path: 'large.sif' }, delivery: { strategy: 'auto' } },
          entrypoint: 'true',
        }),
        places: site.hosts.map((host) => ({
          ...{ host, driver: 'ssh' as const, cores: 2 },
          configuration: { containerRuntime: 'apptainer' },
        })),
        credentialRef,
      })
      const clear = (): Promise<unknown> =>
        Promise.all(site.hosts.map((host) => host.run('cd; rm -rf .orrery/artifacts theirs.sif', 'account')))
      const wholeRuns: number[] = []
      let mostBytes = 0
      let number = 0
      const ours = async (): Promise<number> => {
        number += 1
        const id = `delivered-${number}`
        wholeRuns.push((await timedRun(daemon, planned, id)).seconds)
        const { artifactTransferRuns: transfers }: { artifactTransferRuns: Transfer[] } = await daemon.ok(
          'GET',
          `/execution-runs/${id}/`,
        )
        if (transfers.length !== site.hosts.length)
          throw new Error(`${id} has ${String(transfers.length)} transfers to ${site.hosts.length} hosts`)
        mostBytes = Math.max(
          mostBytes,
          transfers.reduce((sum, { networkBytes }) => sum + networkBytes, 0),
        )
        await clear()
        return (
          Math.max(...transfers.map(({ finishedAt }) => finishedAt)) -
          Math.min(...transfers.map(({ startedAt }) => startedAt))
        )
      }
      const scp = async (): Promise<number> => {
        const seconds = await secondsOf(() =>
          Promise.all(
            site.hosts.map((host) =>
              run('scp', ['-q', ...site.sshOptions, sif, `${host.user}@${host.address}:theirs.sif`], {
                deadlineMs: 600_000,
              }),
            ),
          ),
        )
        await clear()
        return seconds
      }
      const { cold, warm } = await interleaved(rounds, { ours, scp })
      return {
        sides: [
          {
            ...{ name: 'Orrery, first transfer begun to last one ended', unit: 's' },
            ...{ cold: cold.ours, warm: warm.ours },
          },
          { name: 'three scp at once', unit: 's', cold: cold.scp, warm: warm.scp },
          { name: 'Orrery, the whole run', unit: 's', cold: wholeRuns[0] ?? 0, warm: wholeRuns.slice(1) },
        ],
        goals: [
          {
            ...{ what: 'against three scp', unit: '×', sense: 'most', goal: 1.1 },
            measured: medianRatio(warm.ours, warm.scp),
          },
          {
            ...{ what: 'bytes against three files', unit: '×', sense: 'most', goal: 1.02 },
            measured: mostBytes / (size * site.hosts.length),
          },
        ],
        notes: [
          `The file has ${(size / mebibyte).toFixed(0)} MiB; all hosts share this machine. Orrery digests what ` +
            'arrived, which is in its time; scp does not. The whole run includes the starts of Apptainer',
          'Profile of two rounds of 2026-11-25, 25 s of transfers: the thread of the daemon writes to sockets ' +
            'for 13.6 s, ciphers for 2.2 s, frees memory for 1.5 s; one thread carries all three files, where ' +
            'scp has three',
        ],
        versions: {
          Apptainer: versionOf((await run('apptainer', ['--version'])).stdout),
          OpenSSH: versionOf((await run('ssh', ['-V'])).stderr),
        },
      }
    } finally {
      await daemon.stop()
      rmSync(folder, { recursive: true, force: true })
    }
  },
}
