import { openFleetWorker } from './fleet.ts'
import { runProgram } from './program.ts'
import { startWorker } from './service.ts'

/** One more worker, on servers that somebody else runs. */
await runProgram('orrery-worker', (surroundings) => openFleetWorker(surroundings, startWorker))
