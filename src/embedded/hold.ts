import { statSync } from 'node:fs'
import { createServer } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'

/**
 * Exclusive hold of a folder by one process. It is a socket in Linux's abstract namespace, named after the folder's device and
 * inode: the kernel gives it to one process and takes it back at its death, however it died, so there is no stale lock to judge.
 */
export interface Hold {
  release(): Promise<void>
}

/** Holds an existing folder for a purpose, or undefined when another process does. */
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

/** Waits until nobody else holds the folder; `onWait` is called once a second meanwhile. */
export const hold = async (directory: string, purpose: string, onWait: () => void): Promise<Hold> => {
  for (let round = 0; ; round++) {
    const held = await tryHold(directory, purpose)
    if (held !== undefined) return held
    if (round % 5 === 0) onWait()
    await sleep(200)
  }
}
