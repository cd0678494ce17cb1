import { afterAll } from '@jest/globals'
import { mkdtempSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { loadSystemImage, openEngine } from '../sites/docker.ts'
import { runtimeDriverConformance, type ConformanceSite } from './conformance.ts'
import { openContainerSite, type ContainerSiteOptions } from './container-site.ts'
import { livesInside } from './in-containers.ts'
import { runFolder } from '../support/remover.ts'

/** One engine for all tests of this file; the suite needs it before it declares its tests. */
const engine = await openEngine({ data: '/var/cache/orrery/test-tasks', kind: 'tasks' })
const ground = mkdtempSync(join(runFolder(), 'orrery-container-'))
afterAll(async () => {
  await engine[Symbol.asyncDispose]()
  rmSync(ground, { recursive: true, force: true })
}, 120_000)
const image = await loadSystemImage(engine)

/** Sites of one root, so that the image is looked at once and not once a test. */
const makeSites = (kind: 'local' | 'ssh', reuse: boolean): (() => ConformanceSite) => {
  const root = mkdtempSync(join(ground, 'root-'))
  return () => {
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
      startSeconds: 6,
      lives: (pid) => livesInside(pid, scratch),
      open: () => {
        const site = openContainerSite(options)
        sites.push(site)
        return site.driver
      },
      submitter: [process.execPath, join(import.meta.dirname, 'container-submitter.ts'), JSON.stringify(options)],
      close: async () => {
        for (const { shell } of sites) await shell.close()
        rmSync(scratch, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 })
      },
    }
  }
}

const patience = { seconds: 60_000 }
runtimeDriverConformance('local, in containers of Docker', makeSites('local', false), patience)
runtimeDriverConformance('local, in containers of Docker that are kept', makeSites('local', true), patience)
