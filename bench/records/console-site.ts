import { spawn, type ChildProcessWithoutNullStreams } from 'node:child_process'
import { once } from 'node:events'
import { performance } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import { WebSocket } from 'ws'
import { startSsh, type SshSite } from '../../sites/ssh.ts'
import { environmentOf, startDaemon, type Daemon } from '../daemon.ts'
import { importKey } from '../reach/places.ts'

/** A daemon with its console, and a host by a real sshd, for figures of the console. */
export interface ConsoleSite extends AsyncDisposable {
  daemon: Daemon
  ssh: SshSite
  /** Arguments of `ssh` for the host. */
  arguments: readonly string[]
}

/** The resources are `here`, this machine, and `there`, the host. */
export const openConsoleSite = async (): Promise<ConsoleSite> => {
  const ssh = await startSsh({ hosts: 1 })
  const [host] = ssh.hosts
  const daemon = await startDaemon({ SERVICE_CONSOLE_ENABLED: 'true', SERVICE_CONSOLE_SESSIONS: '100' })
  const credentialRef = await importKey(daemon, 'bench', ssh.key.privateKey)
  const core = { cpuCores: 1, cpuCapacity: 1 }
  await daemon.ok('POST', '/environments/', environmentOf('here', {}, [{ id: 'here', ...core }]))
  await daemon.ok('POST', '/environments/', {
    ...environmentOf('there', { driver: 'ssh', configuration: { connectionId: 'host' } }, [
      { id: 'there', ...core },
    ]),
    connections: [
      {
        ...{
          id: 'host',
          name: 'host',
          type: 'ssh',
          endpoint: host.address,
          username: host.user,
          credentialRef,
        },
        configuration: { port: host.port, knownHosts: host.knownHosts() },
      },
    ],
  })
  return {
    daemon,
    ssh,
    arguments: [...ssh.sshOptions, `${ssh.user}@${host.address}`],
    async [Symbol.asyncDispose]() {
      await daemon.stop()
      await ssh.stop()
    },
  }
}

/** A terminal as a benchmark uses it: what is written, and what arrives. */
export interface BenchTerminal {
  write: (text: string) => void
  /** Resolves when this text has arrived, since `write` or since the last call. */
  shows: (text: string) => Promise<void>
  /** Bytes that have arrived. */
  bytes: () => number
  end: () => Promise<void>
}

const watching = (write: (text: string) => void, end: () => Promise<void>) => {
  let tail = ''
  let bytes = 0
  let wake = (): void => undefined
  return {
    take: (data: Buffer): void => {
      bytes += data.length
      tail = (tail + data.toString('latin1')).slice(-65_536)
      wake()
    },
    terminal: {
      write,
      async shows(text: string): Promise<void> {
        for (const until = performance.now() + 300_000; !tail.includes(text);) {
          if (performance.now() > until) throw new Error(`${text} did not arrive: ${tail.slice(-500)}`)
          await new Promise<void>((resolve) => (wake = resolve))
        }
        tail = tail.slice(tail.lastIndexOf(text) + text.length)
      },
      bytes: () => bytes,
      end,
    } satisfies BenchTerminal,
  }
}

/** A session of the console. */
export const sessionOf = async (
  { daemon }: Pick<ConsoleSite, 'daemon'>,
  resourceId: string,
): Promise<BenchTerminal> => {
  const { id } = await daemon.ok('POST', '/console-sessions/', { resourceId })
  for (;;) {
    const { status, failure } = await daemon.ok('GET', `/console-sessions/${id}/`)
    if (status === 'connected') break
    if (status === 'failed') throw new Error(failure)
    await sleep(50)
  }
  const ws = new WebSocket(`${daemon.facts().baseUrl.replace('http', 'ws')}/console-sessions/${id}/stream/`)
  const { take, terminal } = watching(
    (text) => ws.send(text),
    async () => {
      await daemon.call('DELETE', `/console-sessions/${id}/`)
      while ((await daemon.ok('GET', `/console-sessions/${id}/`)).finishedAt === undefined) await sleep(50)
      ws.terminate()
    },
  )
  ws.on('message', take)
  await once(ws, 'open')
  return terminal
}

/** `ssh -tt` of OpenSSH to the same host. */
export const openSshTerminal = async (site: ConsoleSite): Promise<BenchTerminal> => {
  const child: ChildProcessWithoutNullStreams = spawn('ssh', ['-tt', ...site.arguments])
  const ended = once(child, 'exit')
  const { take, terminal } = watching(
    (text) => void child.stdin.write(text),
    async () => {
      child.kill()
      await ended
    },
  )
  child.stdout.on('data', take)
  terminal.write('echo re""ady\n')
  await terminal.shows('ready')
  return terminal
}
