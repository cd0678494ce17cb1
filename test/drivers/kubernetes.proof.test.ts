import { expect } from '@jest/globals'
import { chmodSync, copyFileSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import type { WatchedObject, WatchHandlers } from '../../src/clients/kubernetes-cluster.ts'
import { openKubernetesDriver, openKubernetesShell } from '../../src/drivers/runtime/kubernetes/driver.ts'
import { startKubernetes, type KubernetesSite } from '../../sites/kubernetes.ts'
import { kubernetesStartMs } from '../../sites/kubernetes-build.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'
import { runtimeDriverConformance, type ConformanceSite } from './conformance.ts'
import { plainIntent } from './intent.ts'
import { toolImage, toolVariables } from './kubernetes-image.ts'
import { clusterOf, openWindow, over, serverOf, submit } from './kubernetes-site.ts'

const { afterAll, beforeAll, describe, test } = needs(...sites.kubernetes)

/** One cluster for all tests of this file. */
let site: KubernetesSite
let helperImage: string
let window: string
let token: string
let cluster: ReturnType<typeof clusterOf>
let node: string
beforeAll(async () => {
  site = await startKubernetes()
  ;[helperImage, window, token] = await Promise.all([toolImage(site), openWindow(site), site.token()])
  cluster = clusterOf(site, () => Promise.resolve(token))
  node = join(window, 'node')
  copyFileSync(process.execPath, node)
}, kubernetesStartMs)
afterAll(async () => {
  cluster.close()
  await site.stop()
}, 120_000)

const hasProcesses = (folder: string): boolean =>
  readdirSync('/proc').some((entry) => {
    try {
      return (
        /^\d+$/.test(entry) && readFileSync(`/proc/${entry}/environ`, 'latin1').includes(`HOME=${folder}/`)
      )
    } catch {
      return false
    }
  })

/** The cluster, whose lists and watches contain nothing while `isHidden`. */
const hiding = (isHidden: () => boolean): typeof cluster => ({
  ...cluster,
  list: async (path, query) => {
    const list = await cluster.list<never>(path, query)
    return isHidden() ? { ...list, items: [] } : list
  },
  watch: <T extends WatchedObject>(
    path: string,
    query: Readonly<Record<string, string>>,
    handlers: WatchHandlers<T>,
  ) =>
    cluster.watch<T>(path, query, {
      ...handlers,
      listed: (items) => handlers.listed(isHidden() ? [] : items),
      changed: (how, object) => handlers.changed(isHidden() ? 'DELETED' : how, object),
    }),
})

/** A runtime with a folder of its own for each test; `place` says where its files are. */
const siteWith = (
  runtime: string,
  place: (scratch: string) => Readonly<Record<string, unknown>>,
): ConformanceSite => {
  const scratch = mkdtempSync(join(site.volume.folder, 'conformance-'))
  chmodSync(scratch, 0o755)
  const options = {
    ...{ namespace: site.namespace, runtime, taskVariable: 'ORRERY_TASK', pollMilliseconds: 500 },
    // Two real cores, and Pods that mostly wait.
    configuration: {
      ...place(scratch),
      ...{ helperImage, settleSeconds: 3, overcommit: 20, outputPatienceSeconds: 0 },
    },
  }
  const shells: ReturnType<typeof openKubernetesShell>[] = []
  return {
    scratch,
    node,
    endsUnmarked: false,
    namesAccount: true,
    // Inside a Pod ids are others: a task is known by its home, which lies in the scratch folder of
    // its test.
    lives: () => hasProcesses(scratch),
    open: () => {
      const shell = openKubernetesShell({ ...options, cluster })
      shells.push(shell)
      return openKubernetesDriver({ ...options, cluster, shell })
    },
    hiding: {
      forMs: 15_000,
      open() {
        let hidden = false
        const shell = openKubernetesShell({ ...options, cluster })
        shells.push(shell)
        const driver = openKubernetesDriver({ ...options, cluster: hiding(() => hidden), shell })
        return { driver, hide: (now) => (hidden = now) }
      },
    },
    submitter: [
      process.execPath,
      join(import.meta.dirname, 'kubernetes-submitter.ts'),
      JSON.stringify({ ...options, server: { ...serverOf(site), token } }),
    ],
    close: async () => {
      for (const shell of shells) await shell.close()
      rmSync(scratch, { recursive: true, force: true })
    },
  }
}
const work = () => ({ persistentVolumeClaim: site.volume.claim, mountPath: site.volume.folder })

describe('kubernetes', () => {
  test.each(['on a volume', 'with files that are carried'])(
    'a task has the environment of its image, and finds its programs there: %s',
    async (where) => {
      const here = siteWith(where === 'on a volume' ? 'image' : 'image-carried', (scratch) =>
        where === 'on a volume'
          ? { volume: work(), root: join(scratch, 'root') }
          : { keeperVolume: work(), root: scratch },
      )
      const driver = here.open()
      try {
        const task = {
          ...plainIntent('image-1', join(here.scratch, 'root/work/run/image-1'), ['tool']),
          container: { image: helperImage, network: true, reuse: false, scope: 'image' },
          environment: { OWN: '1' },
        }
        await submit(driver, task)
        await over(driver, task)
        expect((await driver.collect(task.name)).state).toMatchObject({ state: 'ended', exitCode: 0 })
        const { bytes } = await driver.logs(task.name, 'stdout', { tail: 10_000 })
        const seen = bytes.toString().trim().split('\n')
        expect(seen).toEqual(expect.arrayContaining([...toolVariables, 'OWN=1', 'LANG=C.UTF-8']))
        expect(seen.filter((line) => /^(HOSTNAME|KUBERNETES_|JOB_|ORRERY_(?!TASK))/.test(line))).toEqual([])
      } finally {
        await driver.close()
        await here.close()
      }
    },
    120_000,
  )

  runtimeDriverConformance(
    'on a volume that all nodes see',
    () => siteWith('kubernetes', (scratch) => ({ volume: work(), root: join(scratch, 'root') })),
    { seconds: 120_000, hides: true },
  )

  runtimeDriverConformance(
    'without a volume: files are carried',
    () => ({
      ...siteWith('carried', (scratch) => ({ keeperVolume: work(), root: scratch })),
      window: mkdtempSync(join(window, 'conformance-')),
      // Somebody has to bring what it needs.
      startsAlone: false,
    }),
    { seconds: 240_000, carried: true },
  )
})
