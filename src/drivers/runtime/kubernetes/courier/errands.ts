import { randomBytes } from 'node:crypto'
import { posix } from 'node:path'
import { DriverError } from '../../contract/driver.ts'
import { gather } from '../../contract/gather.ts'
import { parseFacts } from '../../remote/record.ts'
import { podKey, type TaskPod } from '../pods.ts'
import { carry, type Commands, type Flow } from './flow.ts'
import {
  atKeeper,
  beginScript,
  codes,
  errandsScript,
  giveScript,
  keepScript,
  receiveScript,
  releaseScript,
  sendScript,
  startScript,
  takeScript,
  tidyScript,
  type Try,
} from './scripts.ts'

/** The keeper's facts about the task of a Pod. */
interface Errand {
  name: string
  /** `NAME.TOKEN` */
  script: string
  /** Relative to the root. */
  directory: string
  state: 'open' | 'delivered' | 'fetched' | 'buried'
}

const states: readonly string[] = ['open', 'delivered', 'fetched', 'buried'] satisfies Errand['state'][]
const isState = (word: string): word is Errand['state'] => states.includes(word)

/** Lines of errands.sh; `root` is cut off the directories. */
function parseErrands(
  text: string,
  places: readonly string[],
  root: string,
): Map<string, { errand: Errand | undefined } | Error> {
  const found = new Map<string, { errand: Errand | undefined } | Error>(
    places.map((place) => [place, { errand: undefined }]),
  )
  let head: { place: string; state: string; script: string } | undefined
  for (const line of text.split('\n')) {
    const [word, place = '', state = '', script = ''] = line.split(' ')
    if (word === 'at') head = { place, state, script }
    if (word === 'failed')
      found.set(place, new DriverError('infrastructure', `cannot make the script of ${place}`))
    const facts = parseFacts(line)
    if (facts === undefined || head === undefined || !isState(head.state)) continue
    const name = head.script.slice(0, head.script.indexOf('.'))
    const directory = posix.relative(root, facts.directory)
    found.set(head.place, { errand: { name, script: head.script, directory, state: head.state } })
    head = undefined
  }
  return found
}

export interface Errands {
  /** Carries a task's inputs to its Pod, and lets it start. False: not yet. */
  deliver(pod: TaskPod): Promise<boolean>
  /** Carries a task's outputs back, and lets its Pod go. False: not yet. */
  fetch(pod: TaskPod): Promise<boolean>
}

/**
 * Several workers may do both at once, and each may break off anywhere. `end` deletes a Pod whose
 * task is buried: it may have been made after the cancel, which deleted the Pods of its time.
 */
export function openErrands(
  commands: Commands,
  root: () => Promise<string>,
  end: (pod: TaskPod) => Promise<void>,
): Errands {
  const { openInPod, doInPod } = commands
  const doAtKeeper = async (what: string, script: string): Promise<string> =>
    commands.doAtKeeper(what, atKeeper(await root(), script))
  /** When this end of a transfer cannot be opened, the other end is closed. */
  const openAtKeeper = async (script: string, other: Flow): Promise<Flow> =>
    commands.openAtKeeper(atKeeper(await root(), script)).catch((error: unknown) => {
      other.close()
      throw error
    })

  /**
   * Undefined: no task, because nothing is known of its Job. The keeper creates packed files first.
   */
  const errandAt = gather<string, { errand: Errand | undefined }>(
    async (places) => {
      const text = await doAtKeeper('cannot ask what is to be delivered', errandsScript(places))
      return parseErrands(text, places, await root())
    },
    { milliseconds: 20, most: 100 },
  )
  const random = (): string => randomBytes(6).toString('hex')
  const worker = random()
  /** A worker makes one try at a time for a Pod. */
  const tryAt = (place: string): Try => {
    const tries = `${place}${worker}`
    return { tries, folder: `${tries}_${random()}` }
  }
  const release = async (pod: string): Promise<void> =>
    doInPod('cannot let go', pod, releaseScript(await root()))

  return {
    async deliver(pod) {
      const { errand } = await errandAt(podKey(pod.job, pod.index))
      const bury = async (): Promise<true> => {
        await end(pod)
        return true
      }
      if (errand?.state === 'buried') return bury()
      if (errand === undefined || errand.state !== 'open') return true
      const { name, script, directory } = errand
      const at = await root()
      const own = tryAt('.in-')
      const to = await openInPod(pod.name, receiveScript(at, own))
      const from = await openAtKeeper(giveScript({ script, job: pod.job, directory }), to)
      if ((await carry(`the files of ${name} to Pod ${pod.name}`, from, to)) === codes.done) {
        const record = beginScript(name, `start ${script} 0 0 - ${pod.node ?? '-'} 0`)
        if ((await doAtKeeper(`cannot write the record of ${name}`, record)).trim() !== 'start') return bury()
        await doInPod(`cannot put the files of ${name}`, pod.name, startScript(at, own.folder, directory))
      }
      await doAtKeeper(`cannot mark ${name} as delivered`, `: > tasks/${name}.delivered`)
      return true
    },
    async fetch(pod) {
      const { errand } = await errandAt(podKey(pod.job, pod.index))
      if (errand === undefined || errand.state === 'fetched') {
        // It still runs, and no record needs it.
        if (pod.terminated === undefined && errand === undefined) return false
        await release(pod.name)
        return true
      }
      const { name, directory } = errand
      const from = await openInPod(
        pod.name,
        sendScript(await root(), { name, directory, over: pod.terminated !== undefined }),
      )
      const own = tryAt(`fetch/${name}.`)
      const tidy = (): Promise<string> => doAtKeeper('cannot tidy up', tidyScript(own.tries))
      try {
        const to = await openAtKeeper(takeScript(own), from)
        const code = await carry(`the files of ${name} from Pod ${pod.name}`, from, to)
        if (code === codes.done)
          await doAtKeeper(
            `cannot put the outputs of ${name} in their place`,
            keepScript(own.folder, { name, directory }),
          )
        else await tidy()
        if (code === codes.notYet) return false
      } catch (error) {
        // A full keeper needs the room.
        await tidy().catch(() => undefined)
        throw error
      }
      await release(pod.name)
      return true
    },
  }
}
