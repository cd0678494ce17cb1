import { poll } from '../../pacing/poll.ts'
import { orAfter } from '../../pacing/within.ts'
import { DriverError } from '../runtime/contract/driver.ts'
import { openKubernetesShell, type ClusterAccess } from '../runtime/kubernetes/driver.ts'
import { openKeeperEnd } from '../runtime/kubernetes/keeper.ts'
import { settingsOf } from '../runtime/kubernetes/settings.ts'
import { StorageError, type StorageDriver } from './contract.ts'
import { openShellStorage } from './shell/driver.ts'

/** A claim of a cluster, and the Pod through which it is reached. */
export interface ClaimAccess {
  cluster: ClusterAccess['cluster']
  namespace: string
  claim: string
  /** Where the Pod mounts the claim. */
  mountPath: string
  /** The Pod's settings, in the form of a runtime's configuration; `helperImage` is required. */
  configuration: Readonly<Record<string, unknown>>
}

/**
 * Counts the commands in the container: its first process, and each that was started from outside,
 * has no parent in it.
 */
const countCommands = `n=0
for stat in /proc/[0-9]*/stat; do
  parent=$(sed 's/.*) //' "$stat" 2>/dev/null | cut -d ' ' -f 2)
  if [ "$parent" = 0 ]; then n=$((n + 1)); fi
done
echo "$n"`
/** The first process, and the shell that counts. */
const alone = 2
const looksForMs = 4_000
const betweenLooksMs = 400
const lookMs = 15_000
/** The end does not wait longer than this for a silent cluster. */
const endMs = 20_000

/** Ends the Pod unless another process uses it; that process then ends it. */
const endUnused = async (place: ClusterAccess): Promise<void> => {
  const end = openKeeperEnd(place)
  if (!(await end.isThere())) return
  const shell = openKubernetesShell(place)
  try {
    // This process' own commands take a moment to be gone.
    const isUnused = async (): Promise<true | undefined> => {
      const { stdout } = await shell.run(countCommands, { deadlineMs: lookMs })
      return Number(stdout.toString().trim()) <= alone ? true : undefined
    }
    const unused = await poll(isUnused, { everyMs: betweenLooksMs, deadlineMs: looksForMs })
    if (unused === true) await end.remove()
  } finally {
    await shell.close()
  }
}

/** Deadline of a call that has to make the Pod first. */
const deadlineMs = 180_000

/**
 * A volume of a cluster: the first call makes a Pod that mounts it, and closing the storage deletes
 * the Pod, unless another process uses it too.
 * @throws StorageError `refused` for a configuration that no Pod can be made of
 */
export const openPodStorage = (place: ClaimAccess): StorageDriver => {
  const { cluster, namespace, claim, mountPath } = place
  // Each place of the mount has its own, so that no two settings share a Pod.
  const runtime = JSON.stringify(['storage', claim, mountPath, place.configuration])
  const configuration = {
    ...place.configuration,
    root: mountPath,
    volume: { persistentVolumeClaim: claim, mountPath },
  }
  try {
    settingsOf(configuration)
  } catch (error) {
    if (!(error instanceof DriverError)) throw error
    throw new StorageError('refused', error.message, { cause: error })
  }
  const shell = openKubernetesShell({ cluster, namespace, runtime, configuration })
  let used = false
  const storage = openShellStorage({
    shell: {
      ...shell,
      run: (...call) => {
        used = true
        return shell.run(...call)
      },
      open: (...call) => {
        used = true
        return shell.open(...call)
      },
    },
    base: mountPath,
    deadlineMs,
  })
  return {
    ...storage,
    close: async () => {
      await storage.close()
      await shell.close()
      // A Pod that stays ends by itself after a day.
      if (!used) return
      const ended = endUnused({ cluster, namespace, runtime, configuration })
      await orAfter(ended, endMs, undefined).catch(() => undefined)
    },
  }
}
