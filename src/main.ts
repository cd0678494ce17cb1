import { openDaemon } from './programs/daemon.ts'
import { runProgram } from './programs/program.ts'
import { startService } from './service.ts'

const usage = `npm start                       runs the API and a worker, with PostgreSQL and Temporal
                                unless others are named
npm start -- --print-config     shows the configuration that would be used, secrets masked
npm start -- --help | --version
docs/configuration.md lists the variables that configure it
`

/** The daemon: embedded servers unless others are named, API, dispatcher and a worker. */
await runProgram({ name: 'orrery', usage }, (surroundings) => openDaemon(surroundings, startService))
