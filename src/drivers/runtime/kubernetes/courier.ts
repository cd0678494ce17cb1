import { randomBytes } from 'node:crypto'
import { posix } from 'node:path'
import type { Readable, Writable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import type { KubernetesCluster } from '../../../clients/kubernetes-cluster.ts'
import { quote } from '../../quote.ts'
import type { SiteShell } from '../../shell.ts'
import { DriverError, type LogSlice } from '../contract/driver.ts'
import { messageOf } from '../contract/errno.ts'
import { gather } from '../contract/gather.ts'
import { courierName, toolsFolder } from './job.ts'
import { placeOf, type TaskPod } from './pods.ts'
import { parseFacts } from '../remote/record.ts'

/**
 * Tasks whose Pods share no file system with the keeper: what they need is carried there before they start, what they leave is carried back
 * before their end counts. Each Pod has a folder of its own where the keeper has the site's root, and beside the task's container one of the
 * helper image, the *courier*, in which our commands run.
 *
 * In the Pod, below the root:
 * - `.alive`: a FIFO that the task's container holds open; its end is the end of that container, however it came. `.over`: it has come.
 * - `.go`: all has been delivered; the task's container waits for it. Made once, by rename under a lock.
 * - `.fetched`: all has been carried back; the courier waits for it, at most `stayingSeconds` beyond the end.
 *
 * At the keeper: `tasks/NAME.task` is created exclusively before `.go` is made (`start … 0 0 -`), so that a name that is buried never starts, and
 * what may have started is never buried; the Pod's own record takes its place when everything is back. `tasks/NAME.delivered` and
 * `tasks/NAME.fetched` spare others the way. `fetch/NAME.TOKEN`: what is coming; put in its place under a lock, the record last.
 *
 * All of it may be done by several workers at once, and broken off anywhere.
 */
export interface Courier {
  /** A Pod as the watch tells it: what it needs is begun. */
  see(pod: TaskPod): void
  /** It is gone. */
  drop(pod: string): void
  /** Pods that are not among these are gone. */
  keep(pods: ReadonlySet<string>): void
  /** What hindered the last try for a Pod, in words. */
  trouble(pod: string): string | undefined
  /** Tells tasks in their Pods that they are to be cancelled when they are stopped. What cannot be told is left. */
  markCancelled(pods: readonly { pod: string; name: string }[], graceSeconds: number): Promise<void>
  /** From the Pod, while it has what the keeper has not. Undefined where only the keeper can tell. */
  logs(
    pod: TaskPod,
    name: string,
    stream: 'stdout' | 'stderr',
    range: { offset: number; limit: number } | { tail: number },
  ): Promise<LogSlice | undefined>
  /** What is left of broken ways. */
  forget(name: string): Promise<void>
  /** Names the files of the keeper: others, where its folder was lost with its Pod. */
  keeperToken(): Promise<string>
  close(): void
}

export interface CourierOptions {
  cluster: Pick<KubernetesCluster, 'exec'>
  namespace: string
  /** Of the keeper. */
  shell: SiteShell
  root: () => Promise<string>
}

/** An hour for somebody to come for the outputs. */
const stayingSeconds = 3600
/** After this long without a byte a stream is taken for broken. */
const silentMs = 120_000
const execDeadlineMs = 15_000
const scriptDeadlineMs = 60_000
const roundsAtOnce = 8
const [firstWaitMs, longestWaitMs] = [250, 15_000]
/** A Pod that leaves is asked for the end of its task again after this. */
const againMs = 500
const largestSlice = 16 * 1024 * 1024

/** Answers of the scripts that are run in Pods. */
const codes = { done: 0, already: 3, nothing: 4, notYet: 5 } as const

/** Gives a static busybox in `folder`, a word of `sh`, the names of all it can be: by itself where it was built for that, as 270 processes take 0.4 s. */
export const linkTools = (folder: string): string =>
  `{ ${folder}/busybox --install ${folder} && [ -x ${folder}/sh ]; } 2> /dev/null ||
for each in $(${folder}/busybox --list); do [ "$each" = busybox ] || ln -sf busybox ${folder}/"$each" || exit; done`

/** What the first container of a Pod runs: folders, and the tools that a task's image may lack. `busybox`: a static one of the helper image, or ''. */
export const installScript = (root: string, busybox: string): string => {
  const at = quote(root)
  const tools =
    busybox === ''
      ? ''
      : `mkdir -p ${toolsFolder}
cp ${quote(busybox)} ${toolsFolder}/busybox
chmod 755 bin ${toolsFolder} ${toolsFolder}/busybox
${linkTools(toolsFolder)}
`
  return `set -e
cd ${at}
mkdir -p tasks arrays
[ -p .alive ] || mkfifo .alive
${tools}`
}

/** What the task's container runs first; `script`: of the Job. Until it is delivered nothing has started, and whoever stops it finds it gone at once. */
export const waitScript = (root: string, script: string, shell: string): string => `cd ${quote(root)} || exit 97
PATH=$PATH:/usr/local/bin:/usr/bin:/bin:${quote(`${root}/${toolsFolder}`)}
trap 'exit 143' TERM
exec 9<> .alive || exit 97
while ! [ -e .go ]; do sleep 0.2; done
trap - TERM
exec ${quote(shell)} ${quote(script)}`

/** What the courier runs. A Pod that is taken away after the start is held as long as the cluster lets it: somebody may come for the outputs. */
export const stayScript = (root: string): string => `cd ${quote(root)} || exit 97
trap '[ -e .go ] || exit 0' TERM
(cat .alive > /dev/null; : > .over) &
halves=0
until [ -e .fetched ]; do
  [ -e .over ] && halves=$((halves + 1))
  [ "$halves" -le ${stayingSeconds * 2} ] || exit 1
  sleep 0.5 &
  wait $!
done`

/** Sub-second times need the format of POSIX, which only GNU's tar writes; its 1 says that a file changed meanwhile. */
const pack = (words: string): string => `format= gnu=
tar --version 2> /dev/null | grep -q GNU && gnu=1 format=--format=posix
tar $format -cf - ${words}
code=$?
[ "$code" = 1 ] && [ -n "$gnu" ] && code=0
exit "$code"`
/** Whoever sends is read to the end: a socket that is closed before takes his exit code with it. */
const unpack = 'tar -xpof - || exit\ncat > /dev/null'

/** A command with its streams, wherever it runs. */
interface Flow {
  stdin: Writable
  stdout: Readable
  /** Code, and the last words. */
  done: Promise<{ code: number | null; stderr: string }>
  close(): void
}

const wordsOf = (stderr: string): string => stderr.trim().slice(-500) || 'it said nothing'

/** Everything that `from` writes into `to`; answers the code of `to`. Rejects unless `from` ended well, or `to` did not want it. */
async function carry(what: string, from: Flow, to: Flow): Promise<number> {
  let last = performance.now()
  let silent = false
  const timer = setInterval(() => {
    if (performance.now() - last < silentMs) return
    silent = true
    from.close()
    to.close()
  }, 5000)
  const meter = async function* (source: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
    for await (const bytes of source) {
      last = performance.now()
      yield bytes
    }
  }
  const sent = pipeline(from.stdout, meter, to.stdin)
  sent.catch(() => undefined)
  to.done.then(
    ({ code }) => (code === 0 ? undefined : from.close()),
    () => from.close(),
  )
  from.done.then(
    ({ code }) => (code === 0 ? undefined : to.close()),
    () => to.close(),
  )
  try {
    const [source, target] = await Promise.allSettled([from.done, to.done])
    if (target.status === 'fulfilled' && target.value.code === codes.already) return codes.already
    if (source.status === 'fulfilled' && source.value.code !== 0) {
      const { code, stderr } = source.value
      if (code === codes.already || code === codes.nothing || code === codes.notYet) return code
      throw new DriverError('infrastructure', `${what}: cannot be read (${wordsOf(stderr)})`)
    }
    if (target.status === 'fulfilled' && target.value.code !== 0)
      throw new DriverError('infrastructure', `${what}: cannot be written (${wordsOf(target.value.stderr)})`)
    if (silent) throw new DriverError('unknown', `${what}: nothing came for ${silentMs / 1000} s`)
    for (const one of [source, target])
      if (one.status === 'rejected') throw new DriverError('unknown', `${what}: ${messageOf(one.reason)}`, { cause: one.reason })
    await sent
    return codes.done
  } finally {
    clearInterval(timer)
    from.close()
    to.close()
  }
}

/** What the keeper knows of the task of a Pod. */
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

export function openCourier({ cluster, namespace, shell, root }: CourierOptions): Courier {
  const closing = new AbortController()
  const pods = new Map<string, TaskPod>()
  const troubles = new Map<string, string>()
  const finished = { deliver: new Set<string>(), fetch: new Set<string>() }
  const busy = new Set<string>()

  // ---- commands

  const inPod = async (pod: string, script: string): Promise<Flow> => {
    const command = ['/bin/sh', '-c', script]
    const channel = await cluster.exec({ namespace, pod, container: courierName, command, deadlineMs: execDeadlineMs })
    let words = ''
    channel.stderr.on('data', (bytes: Buffer) => (words = (words + bytes.toString()).slice(-4096)))
    const done = channel.done.then((code) => ({ code, stderr: words }))
    done.catch(() => undefined)
    return { stdin: channel.stdin, stdout: channel.stdout, done, close: () => channel.close() }
  }
  const atKeeper = async (script: string): Promise<Flow> => {
    const stream = await shell.open(script)
    const { stdin, stdout, done } = stream
    let over = false
    const end = (): void => void (over = true)
    done.then(end, end)
    // It ends processes by their id, which may be another's by now.
    return { stdin, stdout, done, close: () => (over ? undefined : stream.kill()) }
  }
  /** A short script in a Pod. */
  const runIn = async (pod: string, script: string): Promise<{ code: number | null; stdout: Buffer; stderr: string }> => {
    const flow = await inPod(pod, script)
    const chunks: Buffer[] = []
    flow.stdout.on('data', (bytes: Buffer) => chunks.push(bytes))
    const timer = setTimeout(() => flow.close(), scriptDeadlineMs)
    try {
      flow.stdin.end()
      return { ...(await flow.done), stdout: Buffer.concat(chunks) }
    } finally {
      clearTimeout(timer)
      flow.close()
    }
  }
  const runThere = async (what: string, pod: string, script: string): Promise<void> => {
    const { code, stderr } = await runIn(pod, script)
    if (code !== 0) throw new DriverError('infrastructure', `${what} in Pod ${pod}: ${wordsOf(stderr)}`)
  }
  const runHere = async (what: string, script: string): Promise<string> => {
    const { code, stdout, stderr } = await shell.run(script, { deadlineMs: scriptDeadlineMs })
    if (code !== 0) throw new DriverError('infrastructure', `${what}: ${wordsOf(stderr)}`)
    return stdout.toString()
  }
  const keeperScript = async (script: string): Promise<string> => {
    const at = await root()
    return `umask 077\ncd ${quote(at)} || exit\nPATH=$PATH:${quote(`${at}/${toolsFolder}`)}\n${script}`
  }

  // ---- whose Pod it is

  /** Undefined: nobody's, as nothing is known of its Job. What is packed is made at the keeper first. */
  const errandAt = gather<string, { errand: Errand | undefined }>(
    async (places) => {
      const at = await root()
      const calls = places.map((place) => `see ${place.split('/').map(quote).join(' ')}`)
      const text = await runHere(
        'cannot ask what is to be delivered',
        await keeperScript(`cd tasks || exit
see() {
  [ -e "../arrays/$1/script" ] || return 0
  script=$(JOB_COMPLETION_INDEX=$2 ORRERY_PREPARE=1 ORRERY_SHELL=own /bin/sh "../arrays/$1/script") || { echo "failed $1/$2"; return 0; }
  [ -n "$script" ] || return 0
  name=\${script%%.*} state=open word=
  [ -e "$name.delivered" ] && state=delivered
  [ -e "$name.task" ] && { read -r word rest < "$name.task"; } && [ "$word" = cancelled ] && state=buried
  [ -e "$name.fetched" ] && state=fetched
  echo "at $1/$2 $state $script"
  grep -sm1 '^# facts ' "$script.run"
}
( flock 8 || exit
${calls.join('\n')}
) 8> ../courier.lock`),
      )
      const found = new Map<string, { errand: Errand | undefined } | Error>(places.map((place) => [place, { errand: undefined }]))
      let head: { place: string; state: string; script: string } | undefined
      for (const line of text.split('\n')) {
        const [word, place = '', state = '', script = ''] = line.split(' ')
        if (word === 'at') head = { place, state, script }
        if (word === 'failed') found.set(place, new DriverError('infrastructure', `cannot make the script of ${place}`))
        const facts = parseFacts(line)
        if (facts === undefined || head === undefined || !isState(head.state)) continue
        const name = head.script.slice(0, head.script.indexOf('.'))
        found.set(head.place, { errand: { name, script: head.script, directory: posix.relative(at, facts.directory), state: head.state } })
        head = undefined
      }
      return found
    },
    { milliseconds: 20, most: 100 },
  )

  // ---- there

  const deliver = async (pod: TaskPod): Promise<boolean> => {
    const { errand } = await errandAt(placeOf(pod.job, pod.index))
    if (errand === undefined || errand.state !== 'open') return true
    const { name, script, directory } = errand
    const at = await root()
    const folder = `.in-${randomBytes(6).toString('hex')}`
    const to = await inPod(
      pod.name,
      `cd ${quote(at)} || exit 97\n[ -e .go ] && exit ${codes.already}\numask 077\nmkdir ${folder} && cd ${folder} || exit\n${unpack}`,
    )
    const words = `./bin/*/wrapper ./tasks/${script}.run ./arrays/${quote(pod.job)}/script ${quote(`./${directory}`)}`
    const from = await atKeeper(await keeperScript(pack(words))).catch((error: unknown) => {
      to.close()
      throw error
    })
    if ((await carry(`the files of ${name} to Pod ${pod.name}`, from, to)) === codes.done) {
      // Who may have started is not buried any more; who is buried does not start.
      const record = `start ${script} 0 0 - ${pod.node ?? '-'} 0`
      const begun = await runHere(
        `cannot write the record of ${name}`,
        await keeperScript(
          `cd tasks || exit\n( set -C; echo "${record} $(date +%s.%N)" > ${name}.task ) 2> /dev/null\nread -r word rest < ${name}.task && echo "$word"`,
        ),
      )
      if (begun.trim() !== 'start') return true
      await runThere(
        `cannot put the files of ${name}`,
        pod.name,
        `cd ${quote(at)} || exit 97
flock .lock /bin/sh -ec '[ -e .go ] && exit
umask 077
rm -rf -- "./$2"
mkdir -p -- "$(dirname -- "./$2")"
mv -- "$1/$2" "./$2"
cp -R -- "$1/." .
: > .go' sh ${folder} ${quote(directory)}
code=$?
[ "$code" = 0 ] && rm -rf .in-*
exit "$code"`,
      )
    }
    await runHere(`cannot mark ${name} as delivered`, await keeperScript(`: > tasks/${name}.delivered`))
    return true
  }

  // ---- and back

  const release = (pod: string, at: string): Promise<void> => runThere('cannot let go', pod, `: > ${quote(`${at}/.fetched`)}`)

  const fetch = async (pod: TaskPod): Promise<boolean> => {
    const { errand } = await errandAt(placeOf(pod.job, pod.index))
    const at = await root()
    if (errand === undefined || errand.state === 'fetched') {
      // It runs still, for nobody.
      if (pod.terminated === undefined && errand === undefined) return false
      await release(pod.name, at)
      return true
    }
    const { name, directory } = errand
    const over = pod.terminated === undefined ? '' : 'over'
    const from = await inPod(
      pod.name,
      `cd ${quote(at)} || exit 97
[ -e .fetched ] && exit ${codes.already}
[ -e .go ] || exit ${codes.nothing}
tries=0
until [ -e .over ] || [ "$tries" -ge 10 ]; do tries=$((tries + 1)); sleep 0.2; done
[ -e .over ] || [ -n "${over}" ] || exit ${codes.notYet}
set --
for each in task out err place; do [ -e "tasks/${name}.$each" ] && set -- "$@" "./tasks/${name}.$each"; done
if [ -d ${quote(`./${directory}`)} ]; then
  set -- "$@" ${quote(`./${directory}`)}
  find ${quote(`./${directory}`)} -type d ! -perm -500 -exec chmod u+rx {} \\;
  find ${quote(`./${directory}`)} -type f ! -perm -400 -exec chmod u+r {} \\;
fi
${pack('"$@"')}`,
    )
    const folder = `fetch/${name}.${randomBytes(6).toString('hex')}`
    const to = await atKeeper(await keeperScript(`mkdir -p ${folder}/in && cd ${folder}/in || exit\n${unpack}`)).catch((error: unknown) => {
      from.close()
      throw error
    })
    const code = await carry(`the files of ${name} from Pod ${pod.name}`, from, to)
    if (code !== codes.done) await runHere('cannot tidy up', await keeperScript(`rm -rf ${folder}`))
    if (code === codes.notYet) return false
    if (code === codes.done) {
      await runHere(
        `cannot put the outputs of ${name} in their place`,
        await keeperScript(`flock courier.lock /bin/sh -ec '[ -e "tasks/$2.fetched" ] && exit
if [ -e "$3" ]; then mv -- "$3" "$1/before"; fi
if [ -e "$1/in/$3" ]; then chmod u+rwx -- "$1/in/$3"; mkdir -p -- "$(dirname -- "$3")"; mv -- "$1/in/$3" "$3"; fi
for each in out err place task; do
  if [ -e "$1/in/tasks/$2.$each" ]; then mv -f -- "$1/in/tasks/$2.$each" "tasks/$2.$each"; fi
done
: > "tasks/$2.fetched"
echo "$2" >> ends' sh ${folder} ${name} ${quote(`./${directory}`)} || exit
chmod -R u+rwX fetch/${name}.* 2> /dev/null
rm -rf fetch/${name}.*`),
      )
    }
    await release(pod.name, at)
    return true
  }

  // ---- one thing after the other for each Pod, some Pods at once

  let free = roundsAtOnce
  const queue: (() => void)[] = []
  const round = async <T>(work: () => Promise<T>): Promise<T> => {
    if (free > 0) free--
    else await new Promise<void>((resolve) => queue.push(resolve))
    try {
      return await work()
    } finally {
      const next = queue.shift()
      if (next === undefined) free++
      else next()
    }
  }
  const wanted = (pod: TaskPod): 'deliver' | 'fetch' | undefined => {
    if (pod.courier !== 'running') return undefined
    const what = pod.terminated !== undefined || pod.deleting !== undefined ? 'fetch' : 'deliver'
    if (what === 'deliver' && pod.startedAt === undefined) return undefined
    return finished[what].has(pod.name) ? undefined : what
  }
  const attend = async (name: string): Promise<void> => {
    for (let wait = firstWaitMs; !closing.signal.aborted;) {
      const again = await round(async () => {
        const pod = pods.get(name)
        const what = pod === undefined ? undefined : wanted(pod)
        if (pod === undefined || what === undefined || closing.signal.aborted) return 'over'
        try {
          const done = await (what === 'deliver' ? deliver(pod) : fetch(pod))
          if (done) finished[what].add(name)
          troubles.delete(name)
          return done ? 'next' : 'later'
        } catch (error) {
          troubles.set(name, messageOf(error))
          return 'failed'
        }
      })
      if (again === 'over') return
      if (again === 'next') {
        wait = firstWaitMs
        continue
      }
      wait = again === 'later' ? againMs : Math.min(wait * 2, longestWaitMs)
      await sleep(wait * (0.5 + Math.random() / 2), undefined, { signal: closing.signal }).catch(() => undefined)
    }
  }
  const drop = (name: string): void => {
    for (const memory of [pods, troubles, finished.deliver, finished.fetch]) memory.delete(name)
  }

  const see = (pod: TaskPod): void => {
    pods.set(pod.name, pod)
    if (busy.has(pod.name) || closing.signal.aborted || wanted(pod) === undefined) return
    busy.add(pod.name)
    void attend(pod.name).finally(() => {
      busy.delete(pod.name)
      const now = pods.get(pod.name)
      if (now !== undefined) see(now)
    })
  }

  return {
    see,
    drop,
    keep(names) {
      for (const name of pods.keys()) if (!names.has(name)) drop(name)
    },
    trouble: (pod) => troubles.get(pod),
    async markCancelled(some, graceSeconds) {
      const at = await root()
      const grace = Math.max(0, Math.ceil(graceSeconds * 100))
      await Promise.allSettled(
        some.map(({ pod, name }) => round(() => runIn(pod, `cd ${quote(`${at}/tasks`)} && echo ${grace} > ${name}.cancel`))),
      )
    },
    async logs(pod, name, stream, range) {
      if (pod.courier !== 'running' || finished.fetch.has(pod.name)) return undefined
      const most = Math.min('tail' in range ? range.tail : range.limit, largestSlice)
      const offset = 'tail' in range ? '$((size > wanted ? size - wanted : 0))' : String(range.offset)
      const answer = await runIn(
        pod.name,
        `cd ${quote(`${await root()}/tasks`)} || exit
file=${name}.${stream === 'stdout' ? 'out' : 'err'} wanted=${most} size=0
[ -e "$file" ] && size=$(($(wc -c < "$file")))
offset=${offset}
count=$((size - offset < wanted ? size - offset : wanted))
echo "$size $offset"
[ "$count" -le 0 ] || tail -c "+$((offset + 1))" "$file" | head -c "$count"
:`,
      ).catch(() => undefined)
      if (answer?.code !== 0) return undefined
      const line = answer.stdout.indexOf('\n')
      const [totalBytes = 0, from = 0] = answer.stdout.subarray(0, line).toString().split(' ').map(Number)
      return { bytes: answer.stdout.subarray(line + 1), offset: from, totalBytes }
    },
    async forget(name) {
      await runHere(`cannot forget ${name}`, await keeperScript(`rm -rf fetch/${quote(name)}.*`))
    },
    async keeperToken() {
      const token = randomBytes(8).toString('hex')
      const text = await runHere(
        'cannot name the files of the keeper',
        await keeperScript(`( set -C; echo ${token} > .keeper ) 2> /dev/null
cat .keeper`),
      )
      return text.trim()
    },
    close: () => closing.abort(),
  }
}
