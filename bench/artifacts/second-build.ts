import { createHash } from 'node:crypto'
import { mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { haveApptainer } from '../../sites/apptainer.ts'
import { openDockerEngine } from '../../sites/docker.ts'
import { run } from '../../sites/ground.ts'
import { kubernetesImages } from '../../sites/kubernetes-images.ts'
import { siteLacks } from '../../sites/needs.ts'
import { configFromEnvironment } from '../../src/config.ts'
import { startDaemon, type Daemon } from '../daemon.ts'
import { newFolder } from '../folder.ts'
import { allMissing, programsMissing } from '../needs.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, median, medianRatio, secondsOf } from '../rounds.ts'
import { versionOf } from '../reach/places.ts'

const recipe = 'FROM local/bb:1\nCOPY text /srv/text\nRUN cat /srv/text\n'

interface BuildRun {
  id: string
  status: string
  outputDigest?: string
  error?: string
}

/** Describes the build once. @returns what builds, and answers the digest of the output */
const described = async (daemon: Daemon, folder: string): Promise<() => Promise<string>> => {
  const context = execFileSync('tar', ['-cz', '-C', folder, '.'])
  const form = new FormData()
  form.append('context', new Blob([Uint8Array.from(context)]), 'context.tar.gz')
  const { baseUrl } = daemon.facts()
  const sent = await fetch(`${baseUrl}/build-contexts/`, { method: 'POST', body: form })
  const { digest: contextDigest } = (await sent.json()) as { digest: string }
  await daemon.ok('POST', '/artifacts/', { artifactId: 'bench', version: '1' })
  await daemon.ok('POST', '/artifact-builds/', {
    ...{
      id: 'bench',
      artifactVersionId: 'artifact-version:bench:1:system:',
      contextDigest,
      cacheKey: 'bench',
    },
    recipeDigest: `sha256:${createHash('sha256').update(recipe).digest('hex')}`,
  })
  return async () => {
    let made: BuildRun = await daemon.ok('POST', '/artifact-builds/bench/runs/')
    while (!['completed', 'failed'].includes(made.status)) {
      await new Promise((resolve) => setTimeout(resolve, 5))
      made = await daemon.ok('GET', `/build-runs/${made.id}/`)
    }
    if (made.status !== 'completed' || made.outputDigest === undefined)
      throw new Error(`the build failed: ${made.error ?? 'without a reason'}`)
    return made.outputDigest
  }
}

export const secondBuild: Benchmark = {
  about:
    'a build of unchanged input again, from the request to completed, against docker build and apptainer build',
  missing: async () =>
    allMissing(
      siteLacks({ kind: 'docker', demoImages: true }),
      programsMissing({ sqfstar: 'squashfs-tools', patchelf: 'patchelf' }),
    ),
  async run({ rounds }) {
    await haveApptainer()
    const folder = newFolder('second-build-')
    const context = join(folder, 'context')
    mkdirSync(context)
    writeFileSync(join(context, 'Dockerfile'), recipe)
    writeFileSync(join(context, 'text'), 'what is built\n')
    await using engine = await openDockerEngine({
      ...{ data: '/var/cache/orrery/test-asked', kind: 'asked', buildkit: true },
    })
    const { busybox } = await kubernetesImages(configFromEnvironment().cacheDir)
    await engine.docker('load', '--quiet', '--input', busybox)
    const daemon = await startDaemon({ SERVICE_CONTAINER_ENGINE: engine.socket })
    try {
      const build = await described(daemon, context)
      const digest = await build()
      const environment = { HOME: folder, PATH: '/usr/sbin:/usr/bin:/sbin:/bin' }
      const byHand = async (): Promise<void> => {
        await engine.docker('build', '--quiet', '--tag', 'orrery-bench/second:1', context)
        await engine.docker('save', '--output', join(folder, 'image.tar'), 'orrery-bench/second:1')
        await run(
          'apptainer',
          ['-q', 'build', '-F', join(folder, 'image.sif'), `docker-archive:${join(folder, 'image.tar')}`],
          { environment },
        )
      }
      const { cold, warm } = await interleaved(rounds, {
        ours: () =>
          secondsOf(async () => {
            if ((await build()) !== digest) throw new Error('the second build has another digest')
          }),
        byHand: () => secondsOf(byHand),
      })
      await engine.docker('rmi', 'orrery-bench/second:1')
      return {
        sides: [
          { name: 'Orrery, POST to completed', unit: 's', cold: cold.ours, warm: warm.ours },
          { name: 'docker build, save, apptainer build', unit: 's', cold: cold.byHand, warm: warm.byHand },
        ],
        goals: [
          { what: 'second build', unit: 's', measured: median(warm.ours), sense: 'most', goal: 0.1 },
          {
            ...{ what: 'against docker build and apptainer build', unit: '×', sense: 'most', goal: 0.2 },
            measured: medianRatio(warm.ours, warm.byHand),
          },
        ],
        notes: [
          'The same recipe, context and engine on both sides, whose own cache is warm; the SIF file of each round ' +
            'of Orrery has the digest of the first',
          'A run of what an earlier run has made is completed by its start, in one transaction',
        ],
        versions: {
          'Docker engine': await engine.docker('version', '--format', '{{.Server.Version}}'),
          Apptainer: versionOf((await run('apptainer', ['--version'], { environment })).stdout),
        },
      }
    } finally {
      await daemon.stop()
      rmSync(folder, { recursive: true, force: true })
    }
  },
}
