import { spawn, type ChildProcess } from 'node:child_process'
import { connect, type Socket } from 'node:net'
import { makeSshKey } from '../../src/clients/ssh/keys.ts'
import ssh2, { type AuthContext, type Connection, type KeyboardAuthContext, type Session } from 'ssh2'

/** An SSH server in this process, that misbehaves as told. It accepts one key, and runs commands by `/bin/sh` as this user. */
export interface SshServer {
  port: number
  privateKey: string
  /** `ssh-ed25519 AAAA…` */
  hostKey: string
  /** Logins that succeeded. */
  logins: number
  /** Attempts of any method. */
  attempts: number
  /** Connections that are not authenticated: now, and the most there were at once. */
  unauthenticated: { now: number; most: number }
  /** Connections that are open. */
  connections: Set<Connection>
  /** Commands that are running. */
  commands: Set<ChildProcess>
  /** Times that keys were exchanged. */
  handshakes: number
  /** What it has written to sockets, in pieces of ssh2: a packet is up to three. */
  writes: number
  /** Connections end without a farewell at the piece of this number, counted by `writes`, which is the last one to leave or is lost itself. */
  cutAt: { write: number; lost: boolean } | undefined
  /** Ends all connections without a farewell. */
  cut: () => void
  close: () => Promise<void>
}

export interface SshServerOptions {
  port?: number
  /** As `makeServerKeys` gives them; made anew by default. */
  keys?: ServerKeys
  /** Never answers at this stage: the login, the channel, the request to run a command; or runs a command that says nothing. */
  hang?: 'login' | 'channel' | 'command' | 'silence'
  /** Session channels at once (`MaxSessions`). */
  maxSessions?: number
  /** After the key (or alone with `keyless`) these prompts, whose answers are judged; rounds follow each other. */
  second?: {
    keyless?: boolean
    rounds: { name?: string; instruction?: string; prompts: { prompt: string; echo: boolean }[]; judge: (answers: string[]) => boolean }[]
  }
  password?: string
  /** Before a login is answered. */
  loginDelayMs?: number
  /** Instead of `/bin/sh -c command`. */
  run?: (command: string) => ChildProcess
}

export interface ServerKeys {
  host: { private: string; public: string }
  user: { private: string; public: string }
}

const makePair = (): { private: string; public: string } => {
  const { privateKey, publicKey } = makeSshKey('')
  return { private: privateKey, public: publicKey }
}

export const makeServerKeys = (): ServerKeys => ({ host: makePair(), user: makePair() })

export const startSshServer = async (options: SshServerOptions = {}): Promise<SshServer> => {
  const keys = options.keys ?? makeServerKeys()
  const userKey = ssh2.utils.parseKey(keys.user.public)
  if (userKey instanceof Error) throw userKey
  const sockets = new Set<{ destroy: () => void }>()

  const second = (context: KeyboardAuthContext): void => {
    const rounds = options.second!.rounds
    const ask = (index: number): void => {
      const round = rounds[index]!
      context.prompt(round.prompts, round.name ?? '', round.instruction ?? '', (answers) => {
        if (!round.judge(answers)) context.reject(['keyboard-interactive'])
        else if (index + 1 < rounds.length) ask(index + 1)
        else context.accept()
      })
    }
    ask(0)
  }

  const authenticate = (): ((context: AuthContext) => void) => {
    let keyAccepted = options.second?.keyless === true
    return (context) => {
      if (options.hang === 'login') return
      server.attempts++
      const methods = options.second === undefined ? ['publickey', ...(options.password === undefined ? [] : ['password'])] : []
      if (context.method === 'publickey' && context.key.data.equals(userKey.getPublicSSH())) {
        if (context.signature !== undefined && !userKey.verify(context.blob!, context.signature, context.hashAlgo)) {
          context.reject()
        } else if (options.second === undefined || context.signature === undefined) {
          context.accept()
        } else {
          keyAccepted = true
          context.reject(['keyboard-interactive'], true)
        }
      } else if (context.method === 'keyboard-interactive' && options.second !== undefined && keyAccepted) second(context)
      else if (context.method === 'password' && options.password !== undefined && context.password === options.password) context.accept()
      else if (options.second !== undefined) context.reject([keyAccepted ? 'keyboard-interactive' : 'publickey'])
      else context.reject(methods as never)
    }
  }

  const listener = new ssh2.Server({ hostKeys: [keys.host.private] }, (connection) => {
    server.connections.add(connection)
    const socket = socketOf(connection)
    const write = socket.write.bind(socket) as (bytes: Uint8Array) => boolean
    socket.write = (bytes: Uint8Array) => {
      const { cutAt } = server
      const last = ++server.writes === cutAt?.write
      if (last && cutAt!.lost) {
        socket.destroy()
        return false
      }
      const room = write(bytes)
      if (last) socket.destroySoon()
      return room
    }
    connection.on('handshake', () => server.handshakes++)
    let waiting = true
    server.unauthenticated.now++
    server.unauthenticated.most = Math.max(server.unauthenticated.most, server.unauthenticated.now)
    const authenticated = (): void => {
      if (waiting) server.unauthenticated.now--
      waiting = false
    }
    const judge = authenticate()
    connection.on('authentication', (context) => setTimeout(() => judge(context), options.loginDelayMs ?? 0))
    connection.on('ready', () => {
      server.logins++
      authenticated()
    })
    connection.on('error', () => undefined)
    connection.on('close', () => {
      authenticated()
      server.connections.delete(connection)
    })
    let sessions = 0
    connection.on('session', (accept, reject) => {
      if (options.hang === 'channel') return
      if (sessions >= (options.maxSessions ?? 100)) {
        reject()
        return
      }
      sessions++
      serveSession(accept(), () => sessions--)
    })
    connection.on('tcpip', (accept, reject, { destIP, destPort }) => {
      const socket = connect(destPort, destIP)
      socket.once('error', () => reject())
      socket.once('connect', () => {
        const channel = accept()
        channel.on('error', () => undefined)
        socket.on('error', () => undefined)
        channel.pipe(socket).pipe(channel)
        channel.on('close', () => socket.destroy())
        sockets.add(socket)
        socket.on('close', () => sockets.delete(socket))
      })
    })
  })

  const serveSession = (session: Session, ended: () => void): void => {
    let child: ChildProcess | undefined
    session.on('signal', (accept, _reject, { name }) => {
      if (accept !== undefined) accept()
      if (child?.pid !== undefined) killGroup(child.pid, `SIG${name}`)
    })
    session.on('exec', (accept, _reject, { command }) => {
      if (options.hang === 'command') return
      const channel = accept()
      channel.on('error', () => undefined)
      if (options.hang === 'silence') return
      const running =
        options.run?.(command) ??
        spawn('/bin/sh', ['-c', command], { stdio: 'pipe', detached: true, cwd: '/', env: { PATH: '/usr/bin:/bin' } })
      child = running
      server.commands.add(running)
      running.stdin!.on('error', () => undefined)
      channel.pipe(running.stdin!)
      running.stdout!.pipe(channel, { end: false })
      running.stderr!.pipe(channel.stderr, { end: false })
      running.on('close', (code, signal) => {
        server.commands.delete(running)
        if (signal === null) channel.exit(code ?? 255)
        else channel.exit(signal.slice(3), false, '')
        channel.end()
        channel.close()
      })
      channel.on('close', () => {
        ended()
        running.stdin!.end()
        // As sshd: the pipes are closed, the process is not told.
        running.stdout!.destroy()
        running.stderr!.destroy()
      })
    })
  }

  const server: SshServer = {
    port: 0,
    privateKey: keys.user.private,
    hostKey: keys.host.public.split(' ').slice(0, 2).join(' '),
    logins: 0,
    attempts: 0,
    unauthenticated: { now: 0, most: 0 },
    connections: new Set(),
    commands: new Set(),
    handshakes: 0,
    writes: 0,
    cutAt: undefined,
    cut: () => {
      for (const connection of server.connections) socketOf(connection).destroy()
    },
    close: async () => {
      server.cut()
      for (const socket of sockets) socket.destroy()
      for (const child of server.commands) if (child.pid !== undefined) killGroup(child.pid, 'SIGKILL')
      await new Promise((resolve) => listener.close(resolve))
    },
  }
  await new Promise<void>((resolve) => listener.listen(options.port ?? 0, '127.0.0.1', resolve))
  server.port = (listener.address() as { port: number }).port
  return server
}

const socketOf = (connection: Connection): Socket => (connection as unknown as { _sock: Socket })._sock

const killGroup = (pid: number, signal: string): void => {
  try {
    process.kill(-pid, signal as NodeJS.Signals)
  } catch {
    // All of it has ended.
  }
}
