/**
 * A function that runs commands: the other side of Orrery's call protocol
 * (`src/drivers/runtime/serverless/protocol.ts`), for Node 18 and later, without dependencies.
 * Deploy it beside the programs that the commands run.
 *
 * A call is identified by its name. While it runs, a second request with the same name waits for
 * the same end. Afterwards such a request gets the same answer, from the ledger. A call that was
 * killed with its instance runs again, in a fresh folder: no output of the killed call has left the
 * old one.
 */
import { spawn } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import {
  constants,
  createReadStream,
  createWriteStream,
  openSync,
  closeSync,
  readdirSync,
  readFileSync,
  statSync,
} from 'node:fs'
import {
  chmod,
  lstat,
  link,
  mkdir,
  mkdtemp,
  open,
  readFile,
  readdir,
  readlink,
  rm,
  stat,
  symlink,
  writeFile,
} from 'node:fs/promises'
import { hostname, tmpdir } from 'node:os'
import { dirname, join, relative } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { setTimeout as sleep } from 'node:timers/promises'

/** Ignores the absence of a file that may be gone already. Any other error is thrown. */
const absent = (error) => {
  if (error.code === 'ENOENT') return undefined
  throw error
}
/** Writes to the platform's log. */
const report = (what) => (error) => {
  console.error(`${what}: ${error.message}`)
}

/** The answer holds this many bytes of each stream: the last ones. */
const logBytes = 1024 * 1024
/** Time between SIGTERM and SIGKILL of a command after its timeout. */
const timeoutGraceSeconds = 5
const partBytes = 4 * 1024 * 1024
const tries = 5
/** Answers are stored for a day. */
const rememberedSeconds = 86_400

const now = () => Date.now() / 1000
const sha256Of = async (path) => {
  const sum = createHash('sha256')
  await pipeline(createReadStream(path), sum)
  return sum.digest('hex')
}
const isInside = (path) =>
  typeof path === 'string' &&
  path !== '' &&
  !path.startsWith('/') &&
  !path.includes('\0') &&
  !path.split('/').includes('..')
const bad = (message) => ({ status: 400, body: { error: message } })

/** The problem of a request, or undefined. */
const problemOf = (request) => {
  if (typeof request !== 'object' || request === null) return 'the request is no JSON object'
  if (request.schemaVersion !== 1)
    return `schemaVersion ${JSON.stringify(request.schemaVersion)} is not spoken here; 1 is`
  if (!/^[a-z0-9-]{1,63}$/.test(request.name ?? '')) return 'name must be 1 to 63 of a-z, 0-9 and -'
  if (request.cancel === true || request.poll === true) return undefined
  if (!Array.isArray(request.argv) || request.argv.length === 0)
    return 'argv must begin with the program to run'
  const paths = [
    ...(request.inputs ?? []).map(({ path }) => path),
    ...(request.workingDirectory === undefined ? [] : [request.workingDirectory]),
  ]
  const outside = paths.find((path) => !isInside(path))
  return outside === undefined
    ? undefined
    : `path ${JSON.stringify(outside)} is not inside the work directory`
}

const cell = new Int32Array(new SharedArrayBuffer(4))

/**
 * Processes with the call's name in their environment; a name is random enough to identify them. A
 * process that executes another program has no environment at that moment, so processes without one
 * are checked again, for 30 ms at most. Threads of the kernel, whose group is 0, never have one.
 */
const markedProcesses = (name) => {
  let left
  try {
    left = readdirSync('/proc').filter((entry) => /^\d+$/.test(entry) && Number(entry) !== process.pid)
  } catch {
    return []
  }
  const marked = []
  for (let wait = 1; left.length > 0; wait *= 2) {
    const becoming = []
    for (const entry of left) {
      try {
        const environment = readFileSync(`/proc/${entry}/environ`, 'latin1')
        if (environment !== '' && !environment.includes(`=${name}\0`)) continue
        const [, state, group] = /^\S+ \(.*\) (\S) \d+ (\d+)/s.exec(
          readFileSync(`/proc/${entry}/stat`, 'latin1'),
        )
        if ('ZX'.includes(state) || group === '0') continue
        ;(environment === '' ? becoming : marked).push(entry)
      } catch {
        // The process has ended meanwhile, or belongs to another account.
      }
    }
    left = wait <= 16 ? becoming : []
    if (left.length > 0) Atomics.wait(cell, 0, 0, wait)
  }
  return marked
}

const signalAll = (name, group, signal) => {
  for (const pid of [...(group === undefined ? [] : [-group]), ...markedProcesses(name).map(Number)]) {
    try {
      process.kill(pid, signal)
    } catch {
      // The process has ended meanwhile.
    }
  }
}

const escaped = /[\udc80-\udcff]/u

/** Names are bytes: in a path, a byte that is no UTF-8 stands as the lone surrogate U+DC00+b. */
const bytesOf = (path) =>
  Buffer.concat(
    path
      .split(/([\udc80-\udcff])/u)
      .map((part) => (escaped.test(part) ? Buffer.of(part.charCodeAt(0) - 0xdc00) : Buffer.from(part))),
  )
/** In URLs such a byte is `\xe9`, and backslashes beside it stand twice. */
const inUrls = (path) =>
  escaped.test(path)
    ? path
        .replaceAll('\\', '\\\\')
        .replace(/[\udc80-\udcff]/gu, (byte) => `\\x${(byte.charCodeAt(0) - 0xdc00).toString(16)}`)
    : path
const isText = (bytes) => Buffer.from(bytes.toString()).equals(bytes)
const pathOf = (bytes) => {
  if (isText(bytes)) return bytes.toString()
  let path = ''
  for (let at = 0; at < bytes.length;) {
    const length = [1, 2, 3, 4].find((n) => isText(bytes.subarray(at, at + n))) ?? 0
    path += length === 0 ? String.fromCharCode(0xdc00 + bytes[at]) : bytes.subarray(at, at + length)
    at += Math.max(1, length)
  }
  return path
}

const writeInputs = async (root, inputs) => {
  for (const input of inputs) {
    const path = bytesOf(join(root, input.path))
    await mkdir(bytesOf(dirname(join(root, input.path))), { recursive: true })
    if (input.target !== undefined) {
      await symlink(bytesOf(input.target), path)
      continue
    }
    if (input.url === undefined) await writeFile(path, Buffer.from(input.contentBase64 ?? '', 'base64'))
    else {
      const response = await fetch(input.url, { redirect: 'error' })
      if (!response.ok || response.body === null)
        throw new Error(`input ${input.path} cannot be read: ${response.status}`)
      await pipeline(Readable.fromWeb(response.body), createWriteStream(path))
    }
    if ((await sha256Of(path)) !== input.sha256)
      throw new Error(`input ${input.path} has another digest than the request says`)
    await chmod(path, input.mode)
  }
}

/** Further warnings are counted. */
const mostWarnings = 20

/** A list of warnings, each about one path of the work directory. */
const openWarnings = () => {
  const texts = []
  let count = 0
  return {
    warn: (path, what) => {
      count += 1
      const name = inUrls(path)
      if (count <= mostWarnings) texts.push(`${name.length > 200 ? `${name.slice(0, 200)}…` : name} ${what}`)
    },
    all: () => (count > mostWarnings ? [...texts, `and ${count - mostWarnings} more`] : texts),
  }
}

/**
 * Files and links below `root`, by path; none where the command has removed or replaced it. A folder
 * that cannot be read, or whose path is too long, gives none and a warning.
 */
const filesBelow = async (root, warn) => {
  const found = []
  if (!(await lstat(root).catch(() => undefined))?.isDirectory()) {
    warn(
      'its work directory',
      'is gone: the command removed, moved or replaced it, so none of its files is listed',
    )
    return found
  }
  const folders = ['']
  for (let below = folders.pop(); below !== undefined; below = folders.pop()) {
    const entries = await readdir(bytesOf(join(root, below)), {
      withFileTypes: true,
      encoding: 'buffer',
    }).catch((error) => {
      warn(below || '.', `could not be read (${error.code}), so none of its files is listed`)
      return []
    })
    for (const entry of entries) {
      const path = below === '' ? pathOf(entry.name) : `${below}/${pathOf(entry.name)}`
      if (entry.isDirectory()) folders.push(path)
      else if (entry.isFile() || entry.isSymbolicLink()) found.push(path)
    }
  }
  return found
}

/** The target of a link; of an absolute one into the folder the relative, as the folder is made anew elsewhere. */
const movable = (root, path, target) =>
  target === root || target.startsWith(`${root}/`)
    ? relative(dirname(join(root, path)), target) || '.'
    : target

const sendParts = async (uploads, path, file) => {
  const url = new URL(uploads.url)
  url.pathname += inUrls(path).split('/').map(encodeURIComponent).join('/')
  const handle = await open(file, 'r')
  try {
    const { size } = await handle.stat()
    const buffer = Buffer.alloc(Math.min(partBytes, Math.max(1, size)))
    for (let offset = 0; offset < size || offset === 0; offset += partBytes) {
      const { bytesRead } = await handle.read(buffer, 0, buffer.length, offset)
      await sendJson(url, 'PUT', { offset, contentBase64: buffer.subarray(0, bytesRead).toString('base64') })
    }
  } finally {
    await handle.close()
  }
}

const sendJson = async (url, method, document) => {
  for (let turn = 1; ; turn++) {
    let words
    try {
      const body = JSON.stringify(document)
      const response = await fetch(url, {
        method,
        body,
        headers: { 'content-type': 'application/json' },
        redirect: 'error',
      })
      if (response.ok) return
      words = `${response.status} ${(await response.text()).slice(0, 200)}`
      if (response.status < 500 && response.status !== 429) turn = tries
    } catch (error) {
      words = error.message
    }
    if (turn >= tries) throw new Error(`${method} ${new URL(url).pathname}: ${words}`)
    await sleep(250 * 2 ** turn)
  }
}

/**
 * The changes of the command in its folder: outputs with contents, within the limit of the answer,
 * or uploaded; and deleted inputs.
 */
const outputsOf = async (root, request) => {
  const before = new Map(request.inputs.map((input) => [input.path, input]))
  const { warn, all } = openWarnings()
  const after = await filesBelow(root, warn)
  const wanted = (path) =>
    request.outputs !== 'expected' ||
    request.expectedOutputs.some(
      (expected) => path === expected || path.startsWith(`${expected.replace(/\/$/, '')}/`),
    )
  const outputs = []
  let left = request.answerLimitBytes - 2 * logBytes * 1.5 - 4096
  for (const path of after) {
    const file = bytesOf(join(root, path))
    if (!wanted(path)) continue
    const facts = await lstat(file).catch((error) => warn(path, `is left out: ${error.code}`))
    if (facts === undefined) continue
    const old = before.get(path)
    if (facts.isSymbolicLink()) {
      const target = movable(root, path, pathOf(await readlink(file, 'buffer')))
      if (old?.target !== target) outputs.push({ path, sizeBytes: 0, target })
      continue
    }
    const digest = await sha256Of(file).catch((error) =>
      warn(path, `cannot be read and is left out: ${error.code}`),
    )
    if (digest === undefined) continue
    if (old !== undefined && old.target === undefined && old.sha256 === digest) continue
    const output = { path, mode: facts.mode & 0o777, sizeBytes: facts.size, sha256: digest }
    const bytes = Math.ceil(facts.size / 3) * 4 + path.length + 200
    if (bytes <= left) {
      outputs.push({ ...output, contentBase64: (await readFile(file)).toString('base64') })
      left -= bytes
    } else if (request.uploads !== undefined) {
      await sendParts(request.uploads, path, file)
      outputs.push({ ...output, uploaded: true })
    } else {
      return {
        outputs: [],
        problem:
          `${path} and the others need more than the ${request.answerLimitBytes} bytes of an answer, ` +
          'and there is nowhere to upload them',
      }
    }
  }
  const present = new Set(after)
  return {
    outputs,
    deleted: request.inputs.map(({ path }) => path).filter((path) => !present.has(path) && wanted(path)),
    warnings: all(),
  }
}

const tailOf = async (path) => {
  const { size } = await stat(path)
  const handle = await open(path, 'r')
  try {
    const bytes = Buffer.alloc(Math.min(size, logBytes))
    await handle.read(bytes, 0, bytes.length, size - bytes.length)
    return bytes.toString('base64')
  } finally {
    await handle.close()
  }
}

/**
 * Runs the command. Resolves when the command and all processes with its mark have ended.
 * `stop(reason, graceSeconds)` ends it.
 */
const startCommand = (request, root, logs, path) => {
  const state = { group: undefined, reason: 'exited', over: false }
  let timers = []
  const stop = (reason, graceSeconds) => {
    if (state.over) return
    if (state.reason === 'exited') state.reason = reason
    signalAll(request.name, state.group, 'SIGTERM')
    timers.push(
      setTimeout(() => !state.over && signalAll(request.name, state.group, 'SIGKILL'), graceSeconds * 1000),
    )
  }
  const ended = new Promise((resolve) => {
    const finish = (exitCode, signal) => {
      state.over = true
      timers.forEach(clearTimeout)
      timers = []
      // Background processes of the command end with it.
      for (let turn = 0; turn < 50 && markedProcesses(request.name).length > 0; turn++)
        signalAll(request.name, state.group, 'SIGKILL')
      resolve({ exitCode, signal, reason: state.reason, finishedAt: now() })
    }
    const failed = (code, words) => {
      void writeFile(logs.err, `${words}\n`).then(() => finish(code, null))
    }
    const cwd = join(root, request.workingDirectory ?? '.')
    const out = openSync(logs.out, 'a')
    const err = openSync(logs.err, 'a')
    try {
      if (!statSync(cwd, { throwIfNoEntry: false })?.isDirectory())
        return failed(126, `cannot enter the working directory ${request.workingDirectory}: it is not there`)
      const [program, ...args] = request.argv
      const placed = Object.entries(request.pathEnvironment ?? {}).map(([key, value]) => [
        key,
        value === '' ? root : join(root, value),
      ])
      const environment = {
        PATH: path,
        HOME: `${root}.home`,
        TMPDIR: '/tmp',
        ...request.environment,
        ...Object.fromEntries(placed),
      }
      const child = spawn(program, args, {
        cwd,
        env: environment,
        detached: true,
        stdio: ['ignore', out, err],
      })
      state.group = child.pid
      child.once('error', (error) =>
        failed(error.code === 'ENOENT' ? 127 : 126, `cannot run ${program}: ${error.message}`),
      )
      child.once('exit', finish)
      const limits = [
        [request.timeoutSeconds, 'timeout'],
        // An end with an answer is better than a kill without one.
        [request.limitSeconds > 60 ? request.limitSeconds - 10 : 0, 'walltime'],
      ].filter(([seconds]) => seconds > 0)
      for (const [seconds, reason] of limits)
        timers.push(
          setTimeout(
            () => stop(reason, Math.min(timeoutGraceSeconds, request.graceSeconds ?? timeoutGraceSeconds)),
            Math.min(seconds * 1000, 2 ** 31 - 1),
          ),
        )
    } catch (error) {
      failed(126, `cannot run ${request.argv[0]}: ${error.message}`)
    } finally {
      closeSync(out)
      closeSync(err)
    }
  })
  return { stop, ended }
}

/**
 * Opens the function: request in, `{ status, body }` out.
 *
 * `ledger`: folder of the answers; `path`: search path of commands.
 */
export const openCommandFunction = ({ ledger, path }) => {
  /** Calls in progress on this instance. */
  const running = new Map()
  const instance = { host: hostname(), pid: process.pid, id: randomBytes(8).toString('hex') }
  let cold = true

  const answerFile = (name) => join(ledger, `${name}.answer`)
  const markFile = (name) => join(ledger, `${name}.running`)
  const answered = async (name) => {
    try {
      return JSON.parse(await readFile(answerFile(name), 'utf8'))
    } catch (error) {
      if (error.code === 'ENOENT') return undefined
      throw error
    }
  }
  /** The first answer under a name stays. */
  const remember = async (name, answer) => {
    const draft = join(ledger, `.${name}.${instance.id}`)
    await writeFile(draft, JSON.stringify(answer), { mode: 0o600 })
    await link(draft, answerFile(name)).catch((error) => {
      if (error.code !== 'EEXIST') throw error
    })
    await rm(draft, { force: true })
    await rm(markFile(name), { force: true })
    return answered(name)
  }
  const forgetOld = async () => {
    for (const file of await readdir(ledger)) {
      const facts = await stat(join(ledger, file)).catch(absent)
      if (facts !== undefined && facts.mtimeMs / 1000 < now() - rememberedSeconds)
        await rm(join(ledger, file), { force: true })
    }
  }
  /**
   * Whether another instance that may be alive works on the call. A process of this machine is
   * checked directly, others by time.
   */
  const isTaken = async (name, limitSeconds) => {
    try {
      const mark = JSON.parse(await readFile(markFile(name), 'utf8'))
      if (mark.id === instance.id) return false
      if (mark.host !== instance.host) return now() < mark.at + limitSeconds + 60
      try {
        process.kill(mark.pid, 0)
        return mark.pid !== instance.pid
      } catch {
        return false
      }
    } catch {
      return false
    }
  }

  const perform = async (request, requestId, coldStart, call) => {
    const { name } = request
    const folder = await mkdtemp(join(tmpdir(), 'call-'))
    try {
      const root = join(folder, 'work')
      await mkdir(root, { mode: 0o700 })
      // Beside the work directory: what programs keep there is no output.
      await mkdir(`${root}.home`, { mode: 0o700 })
      const logs = { out: join(folder, 'out'), err: join(folder, 'err') }
      await writeInputs(root, request.inputs ?? [])
      // Kills leftovers of an earlier, dead instance on this machine.
      if (call.abandoned) signalAll(name, undefined, 'SIGKILL')
      const cancelled = await answered(name)
      if (cancelled !== undefined) return cancelled
      const startedAt = now()
      const command = startCommand(request, root, logs, path)
      call.stop = command.stop
      if (call.stopped !== undefined) command.stop('cancelled', call.stopped)
      const end = await command.ended
      for (const file of Object.values(logs))
        closeSync(openSync(file, constants.O_WRONLY | constants.O_CREAT, 0o600))
      const { outputs, deleted = [], warnings = [], problem } = await outputsOf(root, request)
      const written = { stdout: await tailOf(logs.out), stderr: await tailOf(logs.err) }
      return {
        schemaVersion: 1,
        name,
        ...end,
        startedAt,
        coldStart,
        ...written,
        outputs,
        deleted,
        ...(warnings.length === 0 ? {} : { warnings }),
        ...(problem === undefined ? {} : { problem }),
        ...(requestId === undefined ? {} : { requestId }),
      }
    } finally {
      await rm(folder, { recursive: true, force: true, maxRetries: 3 }).catch(report(`${folder} stays`))
    }
  }

  const begin = (request, requestId) => {
    const { name } = request
    const coldStart = cold
    cold = false
    const call = { stop: undefined, stopped: undefined, answer: undefined, abandoned: false }
    running.set(name, call)
    const work = async () => {
      try {
        call.abandoned = (await stat(markFile(name)).catch(absent)) !== undefined
        await writeFile(markFile(name), JSON.stringify({ ...instance, at: now() }), { mode: 0o600 })
        const answer = await remember(name, await perform(request, requestId, coldStart, call))
        // A caller that misses the answer asks again under the same name, and gets it from the
        // ledger.
        if (request.respond === 'callback')
          await sendJson(request.callback.url, 'POST', answer).catch(
            report(`the answer of ${name} was not taken`),
          )
        return answer
      } finally {
        running.delete(name)
        void forgetOld().catch(report('old answers were not forgotten'))
      }
    }
    call.answer = work()
    // The caller gets the error. It may have left already, so the error is logged too.
    call.answer.catch(report(`the call ${name} failed`))
    return call
  }

  return async (request, requestId, alone) => {
    const problem = problemOf(request)
    if (problem !== undefined) return bad(problem)
    const { name } = request
    const isRunning = { status: 202, body: { schemaVersion: 1, name, state: 'running' } }
    if (request.cancel === true) {
      const call = running.get(name)
      if (call !== undefined) {
        call.stopped = request.graceSeconds ?? timeoutGraceSeconds
        call.stop?.('cancelled', call.stopped)
        return { status: 200, body: await call.answer }
      }
      if (await isTaken(name, 3600)) return isRunning
      const at = now()
      const never = {
        schemaVersion: 1,
        name,
        exitCode: null,
        signal: null,
        reason: 'cancelled',
        startedAt: at,
        finishedAt: at,
      }
      const answer = (await answered(name)) ?? (await remember(name, never))
      // A call that arrived meanwhile has not seen this answer.
      const late = running.get(name)
      if (late !== undefined) late.stopped = 0
      late?.stop?.('cancelled', 0)
      return { status: 200, body: answer }
    }
    const known = await answered(name)
    if (known !== undefined) {
      // The first answer may have been lost in transit.
      if (request.respond === 'callback')
        await sendJson(request.callback.url, 'POST', known).catch(
          report(`the answer of ${name} was not taken`),
        )
      return { status: 200, body: known }
    }
    let call = running.get(name)
    if (call === undefined && (await isTaken(name, request.limitSeconds ?? 3600))) return isRunning
    if (request.poll === true)
      return call === undefined
        ? { status: 404, body: { schemaVersion: 1, name, state: 'unknown' } }
        : isRunning
    call ??= running.get(name) ?? begin(request, requestId)
    // An instance that is frozen after its answer, like Lambda's, has to wait for the end.
    if (request.respond !== 'answer' && !alone) return isRunning
    return { status: 200, body: await call.answer }
  }
}
