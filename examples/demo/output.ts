import { mkdirSync, writeFileSync } from 'node:fs'
import path from 'node:path'

/** The folder of one run of the demo. */
export interface Output {
  /** Identifies the run: the local time, unique in its folder. Valid in ids. */
  run: string
  file(name: string): string
  /** @returns the file's path */
  write(name: string, content: string | Buffer): string
}

export const openOutput = (parent: string, now = new Date()): Output => {
  mkdirSync(parent, { recursive: true })
  const two = (value: number): string => String(value).padStart(2, '0')
  const date = `${now.getFullYear()}${two(now.getMonth() + 1)}${two(now.getDate())}`
  const stamp = `${date}-${two(now.getHours())}${two(now.getMinutes())}${two(now.getSeconds())}`
  for (let count = 1; ; count++) {
    const run = count === 1 ? stamp : `${stamp}-${count}`
    const folder = path.join(parent, run)
    try {
      mkdirSync(folder)
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EEXIST') continue
      throw error
    }
    const file = (name: string): string => path.join(folder, name)
    return {
      run,
      file,
      write: (name, content) => {
        writeFileSync(file(name), content)
        return file(name)
      },
    }
  }
}
