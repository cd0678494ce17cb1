import { execFileSync, spawn, type ChildProcess } from 'node:child_process'
import { readFileSync, readlinkSync } from 'node:fs'
import { connect, type Socket } from 'node:net'
import { makeSshKey } from '../../src/clients/ssh/keys.ts'
import ssh2, { type AuthContext, type Connection, type KeyboardAuthContext, type Session } from 'ssh2'

/**
 * An SSH server in this process that misbehaves on request. It accepts one key, and runs commands
 * by `/bin/sh` as this user.
 */
export interface SshServer {
  port: number
  privateKey: string
  /** `ssh-ed25519 AAAA…` */
  hostKey: string
  /** Logins that succeeded. */
  logins: number
  /** Attempts of any method. */
  attempts: number
  /** Unauthenticated connections: now, and the most at once. */
  unauthenticated: { now: number; most: number }
  /** Connections that are open. */
  connections: Set<Connection>
  /** Commands that are running. */
  commands: Set<ChildProcess>
  /** The number of key exchanges. */
  handshakes: number
  /** The number of writes to sockets, in pieces of ssh2: a packet is up to three. */
  writes: number
  /**
   * Connections end without a close message at the piece of this number, counted by `writes`. That
   * piece is the last one sent, or is lost itself.
   */
  cutAt: { write: number; lost: boolean } | undefined
  /** Ends all connections without a close message. */
  cut: () => void
  close: () => Promise<void>
}

export interface SshServerOptions {
  port?: number
  /** In the form of `makeServerKeys`; new ones by default. */
  keys?: ServerKeys
  /**
   * The stage that never gets an answer: the login, the channel, the request to run a command.
   * `silence` runs a command without output.
   */
  hang?: 'login' | 'channel' | 'command' | 'silence'
  /** Connections end at the request for a pseudo terminal. */
  endsAtTerminal?: boolean
  /** Session channels at once (`MaxSessions`). */
  maxSessions?: number
  /**
   * Prompts after the key (or alone with `keyless`), with a check of their answers; rounds follow
   * each other.
   */
  second?: {
    keyless?: boolean
    rounds: {
      name?: string
      instruction?: string
      prompts: { prompt: string; echo: boolean }[]
      judge: (answers: string[]) => boolean
    }[]
  }
  password?: string
  /** Delay before the answer to a login. */
  loginDelayMs?: number
  /** Replaces `/bin/sh -c command`. */
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
      const methods =
        options.second === undefined
          ? ['publickey', ...(options.password === undefined ? [] : ['password'])]
          : []
      if (context.method === 'publickey' && context.key.data.equals(userKey.getPublicSSH())) {
        if (
          context.signature !== undefined &&
          !userKey.verify(context.blob!, context.signature, context.hashAlgo)
        ) {
          context.reject()
        } else if (options.second === undefined || context.signature === undefined) {
          context.accept()
        } else {
          keyAccepted = true
          context.reject(['keyboard-interactive'], true)
        }
      } else if (context.method === 'keyboard-interactive' && options.second !== undefined && keyAccepted)
        second(context)
      else if (
        context.method === 'password' &&
        options.password !== undefined &&
        context.password === options.password
      )
        context.accept()
      else if (options.second !== undefined)
        context.reject([keyAccepted ? 'keyboard-interactive' : 'publickey'])
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
      serveSession(
        accept(),
        () => sessions--,
        () => socket.destroy(),
      )
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

  const serveSession = (session: Session, ended: () => void, cut: () => void): void => {
    let child: ChildProcess | undefined
    let hasTerminal = false
    session.on('pty', (accept) => {
      if (options.endsAtTerminal === true) return cut()
      hasTerminal = true
      accept()
    })
    session.on('window-change', (accept, _reject, { rows, cols }) => {
      if (accept !== undefined) accept()
      resizeTerminal(child?.pid, rows, cols)
    })
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
        spawn(...(hasTerminal ? onTerminal(command) : inShell(command)), {
          stdio: 'pipe',
          detached: true,
          cwd: '/',
          env: { PATH: '/usr/bin:/bin', SHELL: '/bin/sh' },
        })
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
        // Like sshd: the pipes are closed, and the process gets no signal.
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

const inShell = (command: string): [string, string[]] => ['/bin/sh', ['-c', command]]
/** On a pseudo terminal of its own. */
const onTerminal = (command: string): [string, string[]] => ['script', ['-qefc', command, '/dev/null']]
/** Sets the size of the terminal that `script` holds. */
const resizeTerminal = (pid: number | undefined, rows: number, columns: number): void => {
  if (pid === undefined) return
  const children = readFileSync(`/proc/${String(pid)}/task/${String(pid)}/children`, 'utf8')
  const tty = readlinkSync(`/proc/${children.trim().split(' ')[0] ?? ''}/fd/0`)
  execFileSync('stty', ['-F', tty, 'rows', String(rows), 'cols', String(columns)])
}

const killGroup = (pid: number, signal: string): void => {
  try {
    process.kill(-pid, signal as NodeJS.Signals)
  } catch {
    // All of them have ended.
  }
}
