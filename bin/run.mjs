#!/usr/bin/env node
// Runs a program of the service from a fresh checkout, with only Node 20 or newer and npm: installs
// the dependencies where they are missing or older than the lock file (the right Node is one of
// them), then runs the program. It passes signals on to the program, and ends the program when the
// npm that started both is gone.
//
//   node bin/run.mjs start|worker|demo|site|clients|test|proof|bench|backup|restore|vault|console [ARGUMENTS]
import { spawn } from 'node:child_process'
import { constants as fsConstants, existsSync, readFileSync, writeFileSync } from 'node:fs'
import { constants } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const programs = {
  start: ['src/main.ts'],
  worker: ['src/worker.ts'],
  demo: ['examples/demo.ts'],
  bench: ['bench/run.ts'],
  backup: ['src/programs/backup.ts', 'backup'],
  restore: ['src/programs/backup.ts', 'restore'],
  vault: ['src/programs/vault-keys.ts'],
  console: ['src/programs/console.ts'],
  site: ['sites/site.ts'],
  clients: ['bin/clients.mjs'],
  test: ['test/run.ts'],
  proof: ['test/proof.ts'],
}

const fail = (message) => {
  process.stderr.write(`${message}\n`)
  process.exit(2)
}

const [name = '', ...args] = process.argv.slice(2)
const usage =
  `usage: node bin/run.mjs ${Object.keys(programs).join('|')} [ARGUMENTS]; PROGRAM --help lists ` +
  'the arguments of a program'
if (name === '--help' || name === '--version') {
  process.stdout.write(
    `${name === '--help' ? usage : JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')).version}\n`,
  )
  process.exit(0)
}
if (!Object.hasOwn(programs, name)) fail(name === '' ? usage : `${name} is not a program of Orrery\n${usage}`)
if (process.platform !== 'linux' || process.arch !== 'x64')
  fail(`this runs on Linux x86_64; this machine is ${process.platform} ${process.arch}`)
if (Number(process.versions.node.split('.')[0]) < 20)
  fail(
    `Node 20 or newer is needed, this is ${process.versions.node}: install it from nodejs.org or your distribution`,
  )

const lock = join(root, 'package-lock.json')
const stamp = join(root, 'node_modules', '.installed-lock.json')
const node = join(root, 'node_modules', '.bin', 'node')

/**
 * The stamp is a copy of the lock file of the last complete installation. Contents are compared,
 * because file times change with every checkout.
 */
const isInstalled = () =>
  existsSync(node) && existsSync(stamp) && readFileSync(stamp, 'utf8') === readFileSync(lock, 'utf8')

/**
 * Whether `nohup` started this process. Node resets every signal to its default action, so only
 * traces of nohup remain: the variable `_` of the shell, and a write-only standard input.
 */
const startedByNohup = () => {
  const accessModes = fsConstants.O_WRONLY | fsConstants.O_RDWR
  const flags = Number.parseInt(
    /^flags:\s*(\d+)/m.exec(readFileSync('/proc/self/fdinfo/0', 'utf8'))?.[1] ?? '0',
    8,
  )
  return basename(process.env._ ?? '') === 'nohup' || (flags & accessModes) === fsConstants.O_WRONLY
}
const nohup = startedByNohup()
const signals = nohup ? ['SIGINT', 'SIGTERM'] : ['SIGINT', 'SIGTERM', 'SIGHUP']
let hungUp = false
if (nohup) process.on('SIGHUP', () => (hungUp = true))

/**
 * A program that ignores the first SIGTERM gets a second one, which forces its end; after 15 s the
 * kernel kills it.
 */
const forceAfterMs = 10_000
const killAfterMs = 15_000
const lookForNpmEveryMs = 250

/**
 * Calls `end` once when the npm that started this process is gone. npm dies of SIGHUP and SIGKILL
 * without a signal to its script. Under nohup a hang-up ends npm alone. Two checks in a row must
 * agree, because the signal may arrive after the first check.
 */
const watchNpm = (end) => {
  if (process.env.npm_lifecycle_event === undefined) return undefined
  const npm = process.ppid
  let missed = 0
  const looking = setInterval(() => {
    if (process.ppid === npm || ++missed < 2) return
    clearInterval(looking)
    if (!hungUp) end()
  }, lookForNpmEveryMs)
  return looking
}

/** Waits for a child and passes signals on to it, so that it can end in order. */
const ended = (child) => {
  const forward = (signal) => child.kill(signal)
  for (const signal of signals) process.on(signal, forward)
  const looking = watchNpm(() => {
    child.kill('SIGTERM')
    setTimeout(() => child.kill('SIGTERM'), forceAfterMs).unref()
    setTimeout(() => child.kill('SIGKILL'), killAfterMs).unref()
  })
  return new Promise((resolve) => {
    child.once('error', (error) => resolve({ code: 127, signal: null, error }))
    child.once('exit', (code, signal) => {
      for (const name of signals) process.off(name, forward)
      clearInterval(looking)
      resolve({ code, signal })
    })
  })
}

const install = async () => {
  const startedAt = Date.now()
  const elapsed = () => `${Math.round((Date.now() - startedAt) / 1000)} s`
  const said = 'installing the dependencies (about 600 packages, half a minute)'
  process.stderr.write(process.stderr.isTTY ? said : `${said}\n`)
  const ticking = process.stderr.isTTY
    ? setInterval(() => process.stderr.write(`\r\x1b[K${said}: ${elapsed()}`), 1000)
    : undefined
  const npm = spawn('npm', ['ci', '--no-audit', '--no-fund', '--loglevel=error'], {
    cwd: root,
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let output = ''
  for (const stream of [npm.stdout, npm.stderr]) stream.on('data', (chunk) => (output += chunk))
  const { code, signal, error } = await ended(npm)
  clearInterval(ticking)
  if (process.stderr.isTTY) process.stderr.write('\r\x1b[K')
  if (error?.code === 'ENOENT') fail('npm was not found: install it beside Node, then run this again')
  if (signal !== null) process.exit(128 + constants.signals[signal])
  if (code !== 0) fail(`npm ci ended with code ${code}:\n${output.trim().split('\n').slice(-30).join('\n')}`)
  if (!existsSync(node))
    fail(
      'npm ci ran without install scripts, so Node 24 is missing: allow them (npm config set ' +
        'ignore-scripts false), then run this again',
    )
  writeFileSync(stamp, readFileSync(lock))
  process.stderr.write(`dependencies installed in ${elapsed()}\n`)
}

if (!isInstalled()) await install()
// A closing terminal sends SIGHUP to the whole process group: under nohup the program has a group
// of its own.
const program = spawn(node, [...programs[name], ...args], {
  ...{ cwd: root, stdio: 'inherit', detached: nohup },
  // Node keeps what it compiles: the service is up after 1.8 s then, not after 2.7 s.
  env: {
    NODE_COMPILE_CACHE: join(root, 'node_modules', '.compiled'),
    NODE_COMPILE_CACHE_PORTABLE: '1',
    ...process.env,
  },
})
const { code, signal, error } = await ended(program)
if (error !== undefined) fail(`${node} could not be started: ${error.message}`)
process.exit(signal === null ? code : 128 + constants.signals[signal])
