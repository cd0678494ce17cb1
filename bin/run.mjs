#!/usr/bin/env node
// Runs a program of the service from a fresh checkout, on nothing but Node 20 or newer and npm: installs the dependencies where they are
// missing or older than the lock file (the right Node is one of them), then gives way to the program.
//   node bin/run.mjs start|worker|demo|site|test|bench|backup|restore|vault [ARGUMENTS]
import { spawn } from 'node:child_process'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { constants } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const programs = {
  start: ['src/main.ts'],
  worker: ['src/worker.ts'],
  demo: ['examples/demo.ts'],
  bench: ['bench/run.ts'],
  backup: ['src/backup.ts', 'backup'],
  restore: ['src/backup.ts', 'restore'],
  vault: ['src/vault-keys.ts'],
  site: ['test/sites/site.ts'],
  test: ['test/run.ts'],
}

const fail = (message) => {
  process.stderr.write(`${message}\n`)
  process.exit(2)
}

const [name = '', ...args] = process.argv.slice(2)
if (!Object.hasOwn(programs, name)) fail(`usage: node bin/run.mjs ${Object.keys(programs).join('|')} [ARGUMENTS]`)
if (process.platform !== 'linux' || process.arch !== 'x64')
  fail(`this runs on Linux x86_64; this machine is ${process.platform} ${process.arch}`)
if (Number(process.versions.node.split('.')[0]) < 20)
  fail(`Node 20 or newer is needed, this is ${process.versions.node}: install it from nodejs.org or your distribution`)

const lock = join(root, 'package-lock.json')
const stamp = join(root, 'node_modules', '.installed-lock.json')
const node = join(root, 'node_modules', '.bin', 'node')

/** The stamp is a copy of the lock file that the last complete installation was made from: times change with every checkout, content does not. */
const isInstalled = () => existsSync(node) && existsSync(stamp) && readFileSync(stamp, 'utf8') === readFileSync(lock, 'utf8')

/** Waits for a child and passes signals on to it, so that it can end in its own order. */
const ended = (child) => {
  const forward = (signal) => child.kill(signal)
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, forward)
  return new Promise((resolve) => {
    child.once('error', (error) => resolve({ code: 127, signal: null, error }))
    child.once('exit', (code, signal) => {
      for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.off(name, forward)
      resolve({ code, signal })
    })
  })
}

const install = async () => {
  const startedAt = Date.now()
  const elapsed = () => `${Math.round((Date.now() - startedAt) / 1000)} s`
  const said = 'installing the dependencies (about 600 packages, half a minute)'
  process.stderr.write(process.stderr.isTTY ? said : `${said}\n`)
  const ticking = process.stderr.isTTY ? setInterval(() => process.stderr.write(`\r\x1b[K${said}: ${elapsed()}`), 1000) : undefined
  const npm = spawn('npm', ['ci', '--no-audit', '--no-fund', '--loglevel=error'], { cwd: root, stdio: ['ignore', 'pipe', 'pipe'] })
  let output = ''
  for (const stream of [npm.stdout, npm.stderr]) stream.on('data', (chunk) => (output += chunk))
  const { code, signal, error } = await ended(npm)
  clearInterval(ticking)
  if (process.stderr.isTTY) process.stderr.write('\r\x1b[K')
  if (error?.code === 'ENOENT') fail('npm was not found: install it beside Node, then run this again')
  if (signal !== null) process.exit(128 + constants.signals[signal])
  if (code !== 0) fail(`npm ci ended with code ${code}:\n${output.trim().split('\n').slice(-30).join('\n')}`)
  if (!existsSync(node))
    fail('npm ci ran without install scripts, so Node 24 is missing: allow them (npm config set ignore-scripts false), then run this again')
  writeFileSync(stamp, readFileSync(lock))
  process.stderr.write(`dependencies installed in ${elapsed()}\n`)
}

if (!isInstalled()) await install()
const program = spawn(node, [...programs[name], ...args], { cwd: root, stdio: 'inherit' })
const { code, signal, error } = await ended(program)
if (error !== undefined) fail(`${node} could not be started: ${error.message}`)
process.exit(signal === null ? code : 128 + constants.signals[signal])
