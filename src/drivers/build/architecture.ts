import { arch } from 'node:os'

/** This machine as images name it. */
export const ownArchitecture = (): string => ({ x64: 'amd64' } as Record<string, string>)[arch()] ?? arch()
