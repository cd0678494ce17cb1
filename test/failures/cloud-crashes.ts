import { startCloud } from '../../sites/cloud.ts'
import type { Failures } from '../../bench/tally.ts'
import { cloudEnvironment, machinesOf, openClouds, withoutPlaybooks } from '../support/cloud.ts'
import { dataFolder, removeFolder, until } from './programs.ts'
import { openPrograms } from './rounds.ts'

/** Where the daemon dies: before the provider is asked, and before its answer is recorded. */
const places = ['cloud-before-create', 'cloud-created'] as const
const providers = ['aws', 'gcp'] as const

/**
 * Sudden deaths of the daemon around the creation of machines. After each, there is one machine,
 * which is tracked, and a cancel ends it; machines of others stay.
 */
export const openCloudCrashes = async (): Promise<Failures> => {
  const site = await startCloud()
  const dataDir = dataFolder()
  const programs = openPrograms(dataDir, {
    environment: cloudEnvironment(),
  })
  await programs.startDaemon()
  await openClouds(programs, site, providers)
  for (const provider of providers)
    await programs.post('/environments/clouds/cloud-capacity-targets/', {
      ...{ id: provider, name: provider, ...machinesOf(provider), maximumInstances: 10_000 },
      ...withoutPlaybooks,
    })

  const living = () => [...site.machines.values()].filter(({ state }) => state !== 'terminated')
  const known = new Set<string>()

  const play = async (number: number) => {
    const provider = providers[Math.floor(number / places.length) % providers.length]!
    const place = places[number % places.length]!
    const stranger = provider === 'aws' ? site.foreign() : site.google.foreign()
    known.add(stranger.id)
    // The provider shows what it made late: only token and name tell that the machine is there.
    site.faults.hideNew(20_000)
    programs.setFailpoint(place)
    const instance = `crash-${String(number)}`
    const { id } = await programs.post('/environments/clouds/cloud-instances/', {
      ...{ capacityTargetId: provider, instanceId: instance },
    })
    await programs.daemon!.ended
    const atDeath = living().filter((machine) => !known.has(machine.id)).length
    await programs.startDaemon()
    const { providerId } = await until('the machine is recorded', 60, async () => {
      const found = await programs.get(`/cloud-instances/${instance}/`)
      return found.providerId === undefined ? undefined : found
    })
    const made = living().filter((machine) => !known.has(machine.id))
    site.faults.hideNew(0)
    const orphans = await programs.get('/environments/clouds/cloud-orphans/')
    await programs.post(`/cloud-operations/${id}/cancel/`)
    await until(
      'the end of the operation',
      60,
      async () => (await programs.get(`/cloud-operations/${id}/`)).status === 'cancelled',
    )
    const left = living().filter((machine) => !known.has(machine.id))
    const expected = place === 'cloud-created' ? 1 : 0
    return {
      counted: 1,
      violations: [
        ...(programs.daemon === undefined ? ['the daemon is away'] : []),
        ...(atDeath === expected ? [] : [`${place}: ${String(atDeath)} machines at the death`]),
        ...(made.length === 1 && made[0]!.id === providerId ? [] : [`${String(made.length)} machines`]),
        ...(orphans.length === 0 ? [] : [`${String(orphans.length)} machines are untracked`]),
        ...(left.length === 0 ? [] : ['a machine outlives the cancel of its provisioning']),
        ...(stranger.state === 'running' ? [] : ['a machine of somebody else was touched']),
      ],
    }
  }
  return {
    what: 'deaths of the daemon between the creation of a machine and its record (aws, gcp)',
    play,
    close: async () => {
      await programs.stop()
      await site.stop()
      removeFolder(dataDir)
    },
  }
}
