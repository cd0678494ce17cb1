import { z } from 'zod'
import { sql, type Db } from './db/sql.ts'
import type { GaugeRow } from './observability/measures.ts'

const Row = z.object({ name: z.string(), labels: z.record(z.string(), z.string()), value: z.number() })

/** The gauges of the record, read in one statement; equal in every process of a fleet. */
export const readGauges = (db: Db): Promise<GaugeRow[]> =>
  db.many(Row, sql`select name, labels, value from service_gauges`)
