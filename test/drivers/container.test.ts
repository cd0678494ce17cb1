import { afterAll } from '@jest/globals'
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { loadSystemImage, openEngine } from '../sites/docker.ts'
import { runtimeDriverConformance, type ConformanceSite } from './conformance.ts'
import { openContainerSite, type ContainerSiteOptions } from './container-site.ts'
import { livesInside } from './in-containers.ts'

/** One engine for all tests of this file; the suite needs it before it declares its tests. */
const engine = await openEngine({ data: '/var/cache/orrery/test-tasks', kind: 'tasks' })
afterAll(() => engine[Symbol.asyncDispose](), 120_000)
const image = await loadSystemImage(engine)

const siteOf = (kind: 'local' | 'ssh', reuse: boolean): ConformanceSite => {
  const scratch = mkdtempSync(join(tmpdir(), 'orrery-container-'))
  const root = join(scratch, 'root')
  mkdirSync(root)
  const options: ContainerSiteOptions = {
    kind,
    root,
    environment: { PATH: `${engine.commands}:/usr/sbin:/usr/bin:/sbin:/bin` },
    container: { engine: 'docker', image, network: false, reuse, scope: 'conformance' },
    containers: { mounts: [scratch] },
  }
  const sites: ReturnType<typeof openContainerSite>[] = []
  return {
    scratch,
    node: '/usr/bin/node',
    endsUnmarked: kind === 'local',
    startSeconds: 10,
    lives: (pid) => livesInside(pid, scratch),
    open: () => {
      const site = openContainerSite(options)
      sites.push(site)
      return site.driver
    },
    submitter: [process.execPath, join(import.meta.dirname, 'container-submitter.ts'), JSON.stringify(options)],
    close: async () => {
      await sites[0]?.plain.closeScope('conformance')
      for (const { shell } of sites) await shell.close()
      rmSync(scratch, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 })
    },
  }
}

runtimeDriverConformance('local, in containers of Docker', () => siteOf('local', false))
