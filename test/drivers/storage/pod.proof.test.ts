import { expect } from '@jest/globals'
import { openPodStorage } from '../../../src/drivers/storage/pod.ts'
import { startKubernetes, type KubernetesSite } from '../../../sites/kubernetes.ts'
import { kubernetesStartMs } from '../../../sites/kubernetes-build.ts'
import { sites } from '../../../sites/requirements.ts'
import { needs } from '../../support/needs.ts'
import { clusterOf } from '../kubernetes-site.ts'
import { at, bytesFrom, contentOf, faultOf, storageConformance, storageKinds } from './conformance.ts'

const { afterAll, beforeAll, describe, test } = needs(...sites.kubernetes)

describe('a volume of a cluster', () => {
  let site: KubernetesSite
  let cluster: ReturnType<typeof clusterOf>
  beforeAll(async () => {
    site = await startKubernetes()
    const token = await site.token()
    cluster = clusterOf(site, () => Promise.resolve(token))
  }, kubernetesStartMs)
  afterAll(async () => {
    cluster?.close()
    await site?.stop()
  }, 120_000)

  const openVolume = (mountPath = '/storage') =>
    openPodStorage({
      ...{ cluster, namespace: site.namespace, claim: site.volume.claim, mountPath },
      configuration: { helperImage: site.images.gnu },
    })
  const podNames = async (): Promise<string[]> => {
    const { items } = await cluster.request<{
      items: { metadata: { name: string; deletionTimestamp?: string } }[]
    }>({
      path: `/api/v1/namespaces/${site.namespace}/pods`,
    })
    return items
      .filter(({ metadata }) => metadata.deletionTimestamp === undefined)
      .map(({ metadata }) => metadata.name)
  }

  storageConformance('through a Pod', storageKinds.shell, async () => {
    const driver = openVolume()
    const again = () => openVolume()
    // The Pod is made here, not within the time of a test.
    await driver.space()
    return { driver, again, stop: () => Promise.resolve() }
  })

  test('the Pod is made at the first use and goes when the storage is closed; files stay', async () => {
    const storage = openVolume('/mounted')
    const before = await podNames()
    await storage.write(at('kept'), bytesFrom('content'))
    expect((await podNames()).length).toBe(before.length + 1)
    await storage.close()
    expect((await podNames()).length).toBe(before.length)
    const again = openVolume('/mounted')
    expect((await contentOf(again, at('kept'))).toString()).toBe('content')
    await again.close()
  }, 240_000)

  test('a claim that is not there, and settings that no Pod can have, are named', async () => {
    const nowhere = openPodStorage({
      ...{ cluster, namespace: 'no-such-namespace', claim: 'none', mountPath: '/storage' },
      configuration: { helperImage: site.images.gnu },
    })
    expect(['refused', 'away', 'credential']).toContain(await faultOf(nowhere.list([], { limit: 1 })))
    await nowhere.close()
    const wrong = () =>
      openPodStorage({
        ...{ cluster, namespace: 'default', claim: 'x', mountPath: '/storage' },
        configuration: { helperImage: 'no image; at all' },
      })
    expect(wrong).toThrow(/helperImage/)
  }, 240_000)
})
