import { statSync } from 'node:fs'
import { createServer } from 'node:net'
import { poll } from '../pacing/poll.ts'

/**
 * Exclusive hold of a folder by one process. It is a socket in Linux's abstract namespace, named
 * after the folder's device and inode. The kernel gives it to one process and frees it at the
 * process' death, so there is no stale lock to judge.
 */
export interface Hold {
  release(): Promise<void>
}

/** Holds an existing folder for a purpose, or returns undefined when another process holds it. */
export const tryHold = async (directory: string, purpose: string): Promise<Hold | undefined> => {
  const { dev, ino } = statSync(directory)
  const socket = createServer((peer) => peer.destroy())
  const held = await new Promise<boolean>((resolve, reject) => {
    socket.once('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'EADDRINUSE') resolve(false)
      else reject(error)
    })
    socket.listen(`\0orrery/${purpose}/${dev}/${ino}`, () => {
      resolve(true)
    })
  })
  if (!held) return undefined
  socket.unref()
  return {
    release: () =>
      new Promise((resolve, reject) => {
        socket.close((error) => {
          if (error === undefined) resolve()
          else reject(error)
        })
      }),
  }
}

/** Waits until no other process holds the folder; `onWait` is called once a second meanwhile. */
export const hold = async (directory: string, purpose: string, onWait: () => void): Promise<Hold> => {
  let round = 0
  const held = await poll(
    async () => {
      const one = await tryHold(directory, purpose)
      if (one === undefined && round++ % 5 === 0) onWait()
      return one
    },
    { everyMs: 200 },
  )
  // Without a deadline the poll ends with an answer.
  return held as Hold
}
