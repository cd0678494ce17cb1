import { openDaemon } from './daemon.ts'
import { runProgram } from './program.ts'
import { startService } from './service.ts'

/** The daemon: embedded servers unless others are named, API, dispatcher and a worker. */
await runProgram('orrery', (surroundings) => openDaemon(surroundings, startService))
