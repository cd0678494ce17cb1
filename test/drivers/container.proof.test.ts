import { mkdtempSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { loadSystemImage, openDockerEngine } from '../../sites/docker.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'
import { runtimeDriverConformance, type ConformanceSite } from './conformance.ts'
import { openContainerSite, type ContainerSiteOptions } from './container-site.ts'
import { livesInside } from './in-containers.ts'
import { runFolder } from '../support/run-folder.ts'
import { manyCases, tortureConformance } from './torture.ts'

const { afterAll, beforeAll, describe } = needs(...sites.docker)

/** One engine for all tests of this file. */
let engine: Awaited<ReturnType<typeof openDockerEngine>>
let image: string
let ground: string
beforeAll(async () => {
  engine = await openDockerEngine({ data: '/var/cache/orrery/test-tasks', kind: 'tasks' })
  ground = mkdtempSync(join(runFolder(), 'orrery-container-'))
  image = await loadSystemImage(engine)
}, 300_000)
afterAll(async () => {
  await engine[Symbol.asyncDispose]()
  rmSync(ground, { recursive: true, force: true })
}, 120_000)

/** Sites of one root, so that the image is looked at once and not once a test. */
const makeSites = (kind: 'local' | 'ssh', reuse: boolean): (() => ConformanceSite) => {
  let root: string | undefined
  return () => {
    root ??= mkdtempSync(join(ground, 'root-'))
    const scratch = mkdtempSync(join(ground, 'scratch-'))
    const options: ContainerSiteOptions = {
      kind,
      root,
      environment: { PATH: `${engine.commands}:/usr/sbin:/usr/bin:/sbin:/bin` },
      container: { engine: 'docker', image, network: false, reuse, scope: 'conformance' },
      containers: { mounts: [scratch], idleSeconds: 20 },
    }
    const sites: ReturnType<typeof openContainerSite>[] = []
    return {
      scratch,
      node: '/usr/bin/node',
      endsUnmarked: kind === 'local',
      measuresEachPeak: !reuse,
      tellsSignals: false,
      namesAccount: true,
      startSeconds: 6,
      lives: (pid) => livesInside(pid, scratch),
      open: () => {
        const site = openContainerSite(options)
        sites.push(site)
        return site.driver
      },
      submitter: [
        process.execPath,
        join(import.meta.dirname, 'container-submitter.ts'),
        JSON.stringify(options),
      ],
      close: async () => {
        for (const { shell } of sites) await shell.close()
        rmSync(scratch, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 })
      },
    }
  }
}

const patience = { seconds: 60_000 }
describe('in containers of Docker', () => {
  runtimeDriverConformance('local', makeSites('local', false), patience)
  runtimeDriverConformance('local, kept', makeSites('local', true), patience)
  tortureConformance('local, kept', makeSites('local', true), manyCases)
})
