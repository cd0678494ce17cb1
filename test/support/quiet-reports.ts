import { openLog } from '../../src/observability/log.ts'
import { openMetrics } from '../../src/observability/metrics.ts'
import { openReports } from '../../src/observability/reports.ts'

/**
 * Reports for parts that are opened without the service: counted without a reader, logged from
 * level error on.
 */
export const quietReports = () => openReports(openLog('error'), openMetrics(undefined).measures)
